package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

// writeRunHome writes run.env into a new directory, as a `make run` with these settings would, and returns the directory.
// Each of more is one more line of the file.
func writeRunHome(t *testing.T, sendonceURL, databaseURL, natsURL string, more ...string) string {
	t.Helper()
	home := t.TempDir()
	text := fmt.Sprintf("DATABASE_URL=%s\nNATS_URL=%s\nSENDONCE_URL=%s\nSENDONCE_USER=admin\nSENDONCE_PASSWORD=secret\n", databaseURL, natsURL, sendonceURL) + strings.Join(more, "\n")
	require.NoError(t, os.WriteFile(filepath.Join(home, "run.env"), []byte(text), 0o600))
	return home
}

// requirePrivateServer skips a test that would leave databases or roles on a server that
// is not its own.
func requirePrivateServer(t *testing.T) {
	t.Helper()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("the server of DATABASE_URL is not private")
	}
}

func startDemo(t *testing.T, home string) *sandbox.Process {
	t.Helper()
	return sandbox.StartProcess(t, sandbox.Build(t, module+"scripts/example"), []string{"SENDONCE_HOME=" + home}, "demo")
}

// natsWithUsers starts a server with the users of `make run`. With its URL, clients log in as bus.UserOperator.
func natsWithUsers(t *testing.T) *natsserver.Server {
	t.Helper()
	users, passwords := bus.Users(bus.StreamAccepted), map[string]string{"points": "secret"}
	for _, u := range users {
		passwords[u.Name] = "secret"
	}
	n := natsserver.New(t, natsserver.Options{
		Dir: t.TempDir(), Config: bus.PasswordConfig(passwords) + bus.ServerConfig(users, bus.ReceiverConfig("points")),
		User: bus.UserOperator, Password: "secret",
	})
	t.Cleanup(func() { require.Empty(t, n.Violations()) })
	return n
}

func natsAs(t *testing.T, n *natsserver.Server, user string) string {
	t.Helper()
	u, err := url.Parse(n.URL())
	require.NoError(t, err)
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

func TestDemo(t *testing.T) {
	t.Parallel()
	requirePrivateServer(t)
	nats := natsWithUsers(t)
	sendonce, trigger := startSendonce(t, natsAs(t, nats, bus.UserAll), natsAs(t, nats, bus.UserTrigger))
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The trigger creates the streams before it is ready.
	require.NoError(t, trigger.WaitReady(ready, "http://"+addressOf(t, trigger)+"/readyz"), trigger.Output())
	home := writeRunHome(t, sendonce.proxy.URL, sendonce.databaseURL, nats.URL(), "NATS_POINTS_URL="+natsAs(t, nats, "points"), "NATS_DOMAIN="+bus.Domain)

	for runs := 1; runs <= 2; runs++ {
		p := startDemo(t, home)
		ready, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		require.NoError(t, p.WaitFor(ready, "ready; Ctrl-C ends it\n"), p.Output())
		for _, step := range []string{"order paid ", "message submitted ", "points given ", "message received "} {
			require.Equal(t, demoOrders, strings.Count(p.Output(), "\n"+step)+strings.Count(p.Output()[:len(step)], step), step)
		}
		require.Contains(t, p.Output(), fmt.Sprintf("anna has %d points\n", runs*150)) // 150 = the sum of the amounts of all demoOrders
		shown := regexp.MustCompile(`(?m)^  curl -d '(.*)' (http://\S+)/orders\n  curl (http://\S+)/points/anna$`).FindStringSubmatch(p.Output())
		require.Len(t, shown, 4, p.Output())
		require.Equal(t, fmt.Sprint(runs*150), pointsOf(t, shown[3], "anna"))
		res, err := http.Post(shown[2]+"/orders", "", strings.NewReader(strings.Replace(shown[1], `"anna"`, `"ben"`, 1)))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Eventually(t, func() bool { return pointsOf(t, shown[3], "ben") == "10" }, time.Minute, 20*time.Millisecond)
		require.NoError(t, p.Signal(syscall.SIGINT))
		require.Zero(t, p.ExitCode(), p.Output())
	}
}

// requireDemoFails requires that the demo exits with 1 and prints one line, which contains message.
func requireDemoFails(t *testing.T, home, message string) {
	t.Helper()
	p := startDemo(t, home)
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), message)
	require.Equal(t, 1, strings.Count(p.Output(), "\n"), p.Output())
}

func TestDemoNeedsMakeRun(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	requireDemoFails(t, empty, "example: start make run first, in another terminal (there is no "+empty+"/run.env)\n")
	requireDemoFails(t, writeRunHome(t, "http://127.0.0.1:1", "", ""), "example: start make run first, in another terminal (the run of ")
}

func TestDemoNeedsCreateDatabase(t *testing.T) {
	t.Parallel()
	requirePrivateServer(t)
	sendonce := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(sendonce.Close)
	postgres, err := sandbox.StartPostgres(t.Context(), sandbox.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, postgres.Stop()) })
	url := postgres.URL("postgres")
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
	require.NoError(t, err)
	cfg := conn.Config()
	require.NoError(t, conn.Close(t.Context()))
	clerk := fmt.Sprintf("host=%s port=%d user=clerk password=clerk dbname=postgres", cfg.Host, cfg.Port)
	requireDemoFails(t, writeRunHome(t, sendonce.URL, clerk, ""), "example: the user clerk of DATABASE_URL may not create databases: let an administrator run CREATE DATABASE orders OWNER clerk, for each of orders, points\n")
}
