package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// TestMain runs Main if startProcess started this binary, and otherwise the tests.
func TestMain(m *testing.M) {
	if os.Getenv("COMMAND_TEST_PROCESS") != "" {
		greet := Command{Name: "greet", Help: "greet someone", Run: func(_ context.Context, env *fn.Env, args []string) error {
			if len(args) != 1 {
				return errors.New("greet needs a name")
			}
			fmt.Println("hello", args[0], "from", env.Config.Username)
			return nil
		}}
		os.Exit(Main(context.Background(), os.Args[1:], []Command{greet}, greeter()))
	}
	sandbox.Main(m)
}

func greeter() fn.Function {
	return fn.HTTP("greeter", func(*fn.Env, struct{}) fn.Routes {
		return fn.Routes{"POST /api/v1/greet": fn.Raw(fn.Submitter, func(context.Context, *fn.Call) (any, error) { return nil, nil })}
	})
}

func startProcess(t *testing.T, env []string, args ...string) *sandbox.Process {
	t.Helper()
	bin, err := os.Executable()
	require.NoError(t, err)
	settings := []string{"COMMAND_TEST_PROCESS=1", "APP_HOST=127.0.0.1", "APP_PORT=0", "BASIC_AUTH_PASSWORD=secret", "DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}
	return sandbox.StartProcess(t, bin, append(settings, env...), args...)
}

func TestMainRunsTheNamedCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int
		want string // in the output
	}{
		{"config needs no settings", []string{"SENDONCE_X=1"}, []string{"config"}, 0, "| `SENDONCE_MAX_CALLS` | `1024` |"},
		{"version needs no settings", []string{"SENDONCE_X=1"}, []string{"version"}, 0, fn.Version()},
		{"routes needs no database", []string{"DATABASE_URL="}, []string{"routes"}, 0, "| `greeter` | `POST /api/v1/greet` | submitter |"},
		{"health fails without a server", []string{"APP_PORT=1"}, []string{"health"}, 1, "connection refused"},
		{"help lists the commands", nil, []string{"help"}, 0, "greet         greet someone"},
		{"an unknown command is refused", nil, []string{"sevre"}, 2, `unknown command "sevre"`},
		{"serve takes no arguments", nil, []string{"serve", "now"}, 2, "serve takes no arguments"},
		{"an added command runs", []string{"BASIC_AUTH_PASSWORD=", "DATABASE_URL="}, []string{"greet", "you"}, 0, "hello you from admin"},
		{"an added command fails", nil, []string{"greet"}, 1, `"msg":"greet failed","cause":"greet needs a name"`},
		{"a bad setting stops the start", []string{"SENDONCE_MAX_CALL=1"}, []string{"serve"}, 2, "SENDONCE_MAX_CALL is no setting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, c.env, c.args...)
			require.Equal(t, c.code, p.ExitCode(), p.Output())
			require.Contains(t, p.Output(), c.want)
		})
	}
}

func TestHealthCallsTheConfiguredPort(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	server := startProcess(t, nil)
	require.NoError(t, server.WaitFor(ctx, `"msg":"listening"`))
	_, rest, _ := strings.Cut(server.Output(), `"address":"127.0.0.1:`)
	port, _, _ := strings.Cut(rest, `"`)
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::"} {
		p := startProcess(t, []string{"APP_HOST=" + host, "APP_PORT=" + port}, "health")
		require.Zero(t, p.ExitCode(), p.Output())
	}
}

func TestServeFailsOnATakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	p := startProcess(t, []string{fmt.Sprintf("PORT=%d", l.Addr().(*net.TCPAddr).Port)})
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "address already in use")
}
