package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

const (
	usersFile   = "compose/nats-users.conf"
	usersObject = "knative/nats/users.yaml"

	natsService  = "nats.sendonce.svc.cluster.local"
	testPassword = "sendonce-local" // as in the overlay local
)

// natsConfig writes the configuration of a deployment into a directory, with passwords and certificates for the test,
// and returns the path of the main file.
func natsConfig(t *testing.T, deployment string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	if deployment == "compose" {
		for _, name := range []string{"nats.conf", "nats-users.conf"} {
			write(name, readFile(t, filepath.Join("compose", name)))
		}
		passwords := map[string]string{}
		for _, u := range bus.Users(bus.StreamAccepted) {
			passwords[u.Name] = testPassword
		}
		write("secrets/nats-passwords.conf", bus.PasswordConfig(passwords))
		return filepath.Join(dir, "nats.conf")
	}
	c := render(t, deployment)
	secrets := c.of("v1 Secret")
	if !strings.HasSuffix(deployment, "local") {
		secrets = append(secrets, natsSecrets(t)...)
	}
	for _, source := range list(c.of(statefulSet).named("nats"), "spec", "template", "spec", "volumes", 0, "projected", "sources") {
		if from := text(source, "configMap", "name"); from != "" {
			for name, content := range c.of(configMap).named(from)["data"].(object) {
				write(name, strings.ReplaceAll(fmt.Sprint(content), "/etc/nats-tls", filepath.Join(dir, "tls")))
			}
		}
		for _, item := range list(source, "secret", "items") {
			write(text(item, "path"), text(secrets.named(text(source, "secret", "name")), "stringData", text(item, "key")))
		}
	}
	if tls := secrets.named("nats-tls"); tls != nil {
		for name, content := range tls["stringData"].(object) {
			write("tls/"+name, fmt.Sprint(content))
		}
	}
	return filepath.Join(dir, "nats.conf")
}

// natsSecrets returns the Secrets that the scripts generate for production, with a certificate for this machine.
func natsSecrets(t *testing.T) cluster {
	t.Helper()
	var all cluster
	for _, script := range [][]string{{"knative/nats/passwords"}, {"knative/nats/certificate", natsService, "127.0.0.1", "localhost"}} {
		out, err := exec.CommandContext(t.Context(), script[0], script[1:]...).Output()
		require.NoError(t, err, script[0])
		all = append(all, parseYAML(t, script[0], out)...)
	}
	return all
}

func TestNATSUsers(t *testing.T) {
	t.Parallel()
	file := bus.ServerFile(bus.Users(bus.StreamAccepted), "")
	manifest := "# Generated: make golden writes it, of shared/bus/users.go.\napiVersion: v1\nkind: ConfigMap\n" +
		"metadata: {name: nats-users, namespace: sendonce}\ndata:\n  nats-users.conf: |\n"
	for line := range strings.Lines(file) {
		manifest += "    " + line
	}
	for path, want := range map[string]string{usersFile: file, usersObject: manifest} {
		requireGolden(t, path, want, "go test ./deploy -run TestNATSUsers -update")
	}
}

// nats-server starts in spite of warnings about its configuration. ProcessConfigFile returns them as an error.
func TestNATSConfigHasNoWarnings(t *testing.T) {
	t.Setenv("POD_NAME", "nats-0")
	for _, name := range append(overlays(t), "compose") {
		var opts server.Options
		require.NoError(t, opts.ProcessConfigFile(natsConfig(t, name)), name)
		require.Equal(t, "/data", opts.StoreDir, name)
		require.Empty(t, opts.NoAuthUser, name)
		require.Len(t, opts.Users, len(bus.Users(bus.StreamAccepted)), name)
		require.Positive(t, opts.MaxConn, name)
		require.EqualValues(t, bus.MaxPending, opts.MaxPending, name)
		require.Positive(t, opts.MaxSubs, name)
		require.Equal(t, "127.0.0.1:8222", fmt.Sprint(opts.HTTPHost, ":", opts.HTTPPort), "%s: the monitoring port needs no password", name)
		require.Zero(t, opts.HTTPSPort, name)
		secure := !strings.HasSuffix(name, "local") && name != "compose"
		require.Equal(t, secure, opts.TLSConfig != nil, name)
		require.Equal(t, secure, opts.Cluster.TLSConfig != nil && opts.Cluster.Username != "" && len(opts.Routes) == 3, name)
		if !strings.HasSuffix(name, "local") {
			require.Equal(t, 2*time.Minute, opts.SyncInterval, name)
		}
	}
}

// NATS reserves the maximum size of each stream, and does not create a stream for which the free space is too small.
func TestStreamsFitIntoNATS(t *testing.T) {
	t.Setenv("POD_NAME", "nats-0")
	for _, name := range append(overlays(t), "compose") {
		t.Run(name, func(t *testing.T) {
			var opts server.Options
			require.NoError(t, opts.ProcessConfigFile(natsConfig(t, name)))
			require.NotZero(t, opts.JetStreamMaxStore)
			nats := natsserver.New(t, natsserver.Options{Dir: t.TempDir(), MaxStore: opts.JetStreamMaxStore})
			cfg := bus.Config{URL: nats.URL(), Replicas: 1}
			if name != "compose" {
				set := render(t, name).of(configMap).named("sendonce")
				for variable, size := range map[string]*int{
					"SENDONCE_STREAM_EVENTS_MB": &cfg.EventsMB, "SENDONCE_STREAM_MESSAGES_MB": &cfg.MessagesMB, "SENDONCE_STREAM_USERS_MB": &cfg.UsersMB,
					"SENDONCE_STREAM_ACCEPTED_MB": &cfg.AcceptedMB, "SENDONCE_STREAM_DEADLETTERS_MB": &cfg.DeadLettersMB,
				} {
					if value := text(set, "data", variable); value != "" {
						var err error
						*size, err = strconv.Atoi(value)
						require.NoError(t, err)
					}
				}
				require.Equal(t, !strings.HasSuffix(name, "local"), cfg.EventsMB > 0)
			}
			b, err := bus.Open(cfg, sandbox.Log(t))
			require.NoError(t, err)
			t.Cleanup(b.Close)
			require.NoError(t, b.Ensure(t.Context()))
		})
	}
}

func TestNATSWarningsAreFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte("jetstream { sync_interval: 2m }"), 0o600))
	require.ErrorContains(t, new(server.Options).ProcessConfigFile(path), "should be converted to a duration")
}
