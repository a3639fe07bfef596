package deploy

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// natsFiles are the configurations of NATS as their containers find them, with
// the password that each is given.
func natsFiles(t *testing.T, password string) map[string]string {
	t.Helper()
	conf, err := os.ReadFile("compose/nats.conf")
	require.NoError(t, err)
	up, err := os.ReadFile("compose/up")
	require.NoError(t, err)
	_, secret, found := strings.Cut(string(up), `secret nats.conf "`)
	require.True(t, found)
	secret, _, _ = strings.Cut(secret, "\"\n")
	secret = strings.NewReplacer(`\"`, `"`, "$(cat secrets/nats_password)", password).Replace(secret)
	files := map[string]string{"compose": strings.Replace(string(conf), "include ./secrets/nats.conf", secret, 1)}
	for _, dir := range overlays(t) {
		c := cluster(render(t, dir))
		for _, v := range list(c.of(statefulSet).named("nats"), "spec", "template", "spec", "containers", 0, "env") {
			if value := text(v, "value"); value != "" {
				t.Setenv(text(v, "name"), strings.ReplaceAll(value, "$(NATS_PASSWORD)", password))
			}
		}
		files[dir] = text(c.of(configMap).named("nats"), "data", "nats.conf")
	}
	t.Setenv("POD_NAME", "nats-0")
	return files
}

// The server starts in spite of what it only warns of.
func TestNATSTakesItsConfigurationWithoutAWarning(t *testing.T) {
	for _, password := range []string{"sendonce-local", "12345", "1e5", "a b;c", "$x", "5mb"} {
		for name, conf := range natsFiles(t, password) {
			path := filepath.Join(t.TempDir(), "nats.conf")
			require.NoError(t, os.WriteFile(path, []byte(conf), 0o600))
			var opts server.Options
			require.NoError(t, opts.ProcessConfigFile(path), "%s, password %q", name, password)
			require.Equal(t, password, opts.Password, name)
			require.Equal(t, "/data", opts.StoreDir, name)
			if !strings.HasSuffix(name, "local") {
				require.Equal(t, 2*time.Minute, opts.SyncInterval, name)
			}
		}
	}
}

// NATS reserves the size of each stream; what it has no room for is not made.
func TestTheStreamsFitTheirNATS(t *testing.T) {
	for name, conf := range natsFiles(t, "sendonce-local") {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "nats.conf")
			require.NoError(t, os.WriteFile(path, []byte(conf), 0o600))
			var opts server.Options
			require.NoError(t, opts.ProcessConfigFile(path))
			require.NotZero(t, opts.JetStreamMaxStore)
			nats := sandbox.NATSIn(t, sandbox.NATSOptions{Dir: t.TempDir(), MaxStore: opts.JetStreamMaxStore})
			cfg := bus.Config{URL: nats.URL(), Replicas: 1}
			if name != "compose" {
				set := cluster(render(t, name)).of(configMap).named("sendonce")
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

func TestAWarningOfNATSIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte("jetstream { sync_interval: 2m }"), 0o600))
	require.ErrorContains(t, new(server.Options).ProcessConfigFile(path), "should be converted to a duration")
}
