package cluster

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
	"github.com/sendonce/sendonce/shared/settings"
)

const natsPassword = "nats-secret" // of every user

// NewNATS starts a server whose users have the permissions of a deployment. Its URL has the user of operators. The test
// fails if a component publishes or subscribes to a subject without permission.
func NewNATS(t testing.TB) *natsserver.Server {
	t.Helper()
	return NATSIn(t, natsserver.Options{Dir: t.TempDir()})
}

// NATSIn is NewNATS with options.
func NATSIn(t testing.TB, o natsserver.Options) *natsserver.Server {
	t.Helper()
	return NATSFor(t, o, bus.StreamAccepted)
}

// NATSFor is NATSIn with another name of the stream of accepted messages.
func NATSFor(t testing.TB, o natsserver.Options, accepted string) *natsserver.Server {
	t.Helper()
	users := bus.Users(accepted, "ordres.>") // tests send to this misspelt subject, which belongs to no stream
	passwords := map[string]string{}
	for _, u := range users {
		passwords[u.Name] = natsPassword
	}
	o.Config = bus.PasswordConfig(passwords) + bus.ServerConfig(users, "")
	o.User, o.Password = bus.UserOperator, natsPassword
	n := natsserver.New(t, o)
	t.Cleanup(func() { require.Empty(t, n.Violations()) })
	return n
}

// NATSURL returns the URL of a server of NewNATS with another user in it. A URL without a user stays as it is.
func NATSURL(t testing.TB, server, user string) string {
	t.Helper()
	u, err := url.Parse(server)
	require.NoError(t, err)
	if u.User != nil {
		u.User = url.UserPassword(user, natsPassword)
	}
	return u.String()
}

// WithNATS returns a change of the configuration: the functions use a server of NewNATS as a deployment of all functions does.
func WithNATS(t testing.TB, server string) func(*settings.Config) {
	t.Helper()
	nats := bus.Config{URL: NATSURL(t, server, bus.UserAll), Replicas: 1}
	return func(c *settings.Config) { c.Bus = nats }
}

// EnsureStreams creates the streams of a server, as the trigger does.
func EnsureStreams(t testing.TB, server string) error {
	t.Helper()
	b, err := bus.Open(bus.Config{URL: NATSURL(t, server, bus.UserTrigger), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	defer b.Close()
	return b.Ensure(t.Context())
}

// asComponent returns env with another user in NATS_URL: the user that a deployment has for the function or command
// that env and args start.
func asComponent(t testing.TB, env []string, args ...string) []string {
	t.Helper()
	values := map[string]string{} // the last value of a name wins
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	user := values["FUNCTION_TARGET"]
	switch {
	case slices.Contains(args, "trigger"):
		user = bus.UserTrigger
	case slices.Contains(args, "drain"):
		user = "save"
	case user == "":
		user = bus.UserAll
	}
	if server := values["NATS_URL"]; strings.Contains(server, "@") {
		env = append(slices.Clip(env), "NATS_URL="+NATSURL(t, server, user))
	}
	return env
}
