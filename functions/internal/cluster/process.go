package cluster

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const module = "github.com/sendonce/sendonce/"

// Binary builds functions/sendonce, once for all tests of a package.
func Binary(t testing.TB) string {
	t.Helper()
	return sandbox.Build(t, module+"functions/sendonce")
}

// NoLoopback is the setting of production: webhooks to this machine are refused.
const NoLoopback = "SENDONCE_OUTGOING_NETWORKS="

// Settings returns the environment of a process on a database; the process listens on a free port.
func Settings(databaseURL string, more ...string) []string {
	return slices.Concat(sandbox.RolesEnv(), []string{
		"DATABASE_URL=" + databaseURL, "BASIC_AUTH_PASSWORD=secret", "SENDONCE_ENCRYPTION_KEYS=" + sandbox.EncryptionKey,
		"APP_HOST=127.0.0.1", "PORT=0", "SENDONCE_METRICS=open", "SENDONCE_OUTGOING_NETWORKS=127.0.0.0/8", // the receivers of tests
	}, more)
}

// StartServer starts all functions, or the one that FUNCTION_TARGET names, as one process on a database, without NATS.
func StartServer(t *testing.T, databaseURL string, env ...string) (*Client, *sandbox.Process) {
	t.Helper()
	p := StartProcess(t, Binary(t), Settings(databaseURL, env...))
	return NewClient(t, Address(t, p)).Connect(databaseURL), p
}

// StartProcess is sandbox.StartProcess, but the process uses NATS as the same user as in a deployment.
func StartProcess(t testing.TB, bin string, env []string, args ...string) *sandbox.Process {
	t.Helper()
	return sandbox.StartProcess(t, bin, asComponent(t, env, args...), args...)
}

// Address waits until a process listens, and returns its URL.
func Address(t *testing.T, p *sandbox.Process) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.WaitFor(ctx, `"listening"`), p.Output())
	for line := range strings.Lines(p.Output()) {
		var entry struct{ Msg, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
			return "http://" + entry.Address
		}
	}
	t.Fatal("no address in\n" + p.Output())
	return ""
}

// WaitExit waits until a process has ended.
func WaitExit(t *testing.T, p *sandbox.Process) {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("still running\n" + p.Output())
	}
}

// OnlyWithClusters skips a test that needs three NATS servers, unless make cluster runs it.
func OnlyWithClusters(t *testing.T) {
	t.Helper()
	if os.Getenv("SENDONCE_CLUSTER") == "" {
		t.Skip("make cluster runs it")
	}
}
