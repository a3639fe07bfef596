package e2e

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// natsPassword is that of every user; startProcess puts the right user into the
// environment of a process.
const natsPassword = "nats-secret"

// newNATS is a server whose users have the permissions that a deployment has. Its
// URL is the operator's.
func newNATS(t testing.TB) *sandbox.NATS {
	t.Helper()
	return natsIn(t, sandbox.NATSOptions{Dir: t.TempDir()})
}

// natsIn is newNATS with options. The test fails when a component asks for what
// its user may not do.
func natsIn(t testing.TB, o sandbox.NATSOptions) *sandbox.NATS {
	t.Helper()
	return natsFor(t, o, bus.StreamAccepted)
}

// natsFor is natsIn where the stream of accepted messages has a name of its own.
func natsFor(t testing.TB, o sandbox.NATSOptions, accepted string) *sandbox.NATS {
	t.Helper()
	n := natsThatMayDeny(t, o, accepted)
	t.Cleanup(func() { require.Empty(t, n.Violations()) })
	return n
}

// natsThatMayDeny is natsFor for a test in which a component asks for what its user
// may not do.
func natsThatMayDeny(t testing.TB, o sandbox.NATSOptions, accepted string) *sandbox.NATS {
	t.Helper()
	users := bus.Users(accepted, "ordres.>")
	passwords := map[string]string{}
	for _, u := range users {
		passwords[u.Name] = natsPassword
	}
	o.Config = bus.PasswordConfig(passwords) + bus.ServerConfig(users, "")
	o.User, o.Password = bus.UserOperator, natsPassword
	return sandbox.NATSIn(t, o)
}

// natsURL is the URL of a server of newNATS for one user.
func natsURL(t testing.TB, at, user string) string {
	t.Helper()
	u, err := url.Parse(at)
	require.NoError(t, err)
	if u.User != nil {
		u.User = url.UserPassword(user, natsPassword)
	}
	return u.String()
}

// ensureStreams makes the streams of a server at that URL, as the trigger does.
func ensureStreams(t testing.TB, at string) error {
	t.Helper()
	b, err := bus.Open(bus.Config{URL: natsURL(t, at, bus.UserTrigger), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	defer b.Close()
	return b.Ensure(t.Context())
}

// startProcess is sandbox.StartProcess with the user of NATS that the component
// has in a deployment.
func startProcess(t testing.TB, bin string, env []string, args ...string) *sandbox.Process {
	t.Helper()
	return sandbox.StartProcess(t, bin, asComponent(t, env, args...), args...)
}

// asComponent is an environment in which NATS_URL is that of the component.
func asComponent(t testing.TB, env []string, args ...string) []string {
	t.Helper()
	last := map[string]string{}
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		last[name] = value
	}
	user := last["FUNCTION_TARGET"]
	switch {
	case slices.Contains(args, "trigger"):
		user = bus.UserTrigger
	case slices.Contains(args, "drain"):
		user = "save"
	case user == "":
		user = bus.UserAll
	}
	if at := last["NATS_URL"]; strings.Contains(at, "@") {
		env = append(slices.Clip(env), "NATS_URL="+natsURL(t, at, user))
	}
	return env
}
