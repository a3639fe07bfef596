package fn

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/GoogleCloudPlatform/functions-framework-go/funcframework"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// TestMain makes the test binary the process that a test starts: "ours" is the command serve, "framework"
// is a main that the functions framework generates.
func TestMain(m *testing.M) {
	switch os.Getenv("FN_TEST_PROCESS") {
	case "ours":
		if err := serveAll(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "framework":
		fmt.Fprintln(os.Stderr, hostByFramework())
		os.Exit(1)
	}
	sandbox.Main(m)
}

// serveAll does what the command serve does.
func serveAll() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	env, served, err := Prepare(nil, []Function{greeter(), longPoll()}, true)
	if err != nil {
		return err
	}
	defer env.Close()
	return ListenAndServe(ctx, env, served)
}

// hostByFramework does what a main that the framework generates does.
func hostByFramework() error {
	if _, err := Register(nil, greeter(), longPoll()); err != nil {
		return err
	}
	return funcframework.StartHostPort("127.0.0.1", os.Getenv("PORT"))
}

// longPoll waits until the process drains.
func longPoll() Function {
	return HTTP("poll", func(env *Env, _ struct{}) Routes {
		return Routes{"GET /api/v1/poll": Raw(Sender, func(ctx context.Context, _ *Call) (any, error) {
			env.Log.Info("polling")
			select {
			case <-env.Draining():
				return "nothing", nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}).Timeout(40 * time.Second)}
	})
}

func startProcess(t *testing.T, kind string, env []string, args ...string) *sandbox.Process {
	t.Helper()
	bin, err := os.Executable()
	require.NoError(t, err)
	settings := []string{
		"FN_TEST_PROCESS=" + kind, "APP_HOST=127.0.0.1", "APP_PORT=0",
		"BASIC_AUTH_PASSWORD=secret", "DATABASE_URL=postgres://nobody@127.0.0.1:1/none",
	}
	return sandbox.StartProcess(t, bin, append(settings, env...), args...)
}

// waitForURL returns the URL that the process logs when it listens.
func waitForURL(t *testing.T, p *sandbox.Process) string {
	t.Helper()
	require.NoError(t, p.WaitFor(boundedContext(t), `"msg":"listening"`))
	_, rest, _ := strings.Cut(p.Output(), `"address":"`)
	address, _, _ := strings.Cut(rest, `"`)
	return "http://" + address
}

func boundedContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// startListening starts a process, "ours" or "framework", and returns when it listens.
func startListening(t *testing.T, kind string, env ...string) (*sandbox.Process, *testServer) {
	t.Helper()
	if kind == "ours" {
		p := startProcess(t, kind, env)
		return p, &testServer{t: t, url: waitForURL(t, p)}
	}
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	p := startProcess(t, kind, append(env, fmt.Sprintf("PORT=%d", port)))
	h := &testServer{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	require.NoError(t, p.WaitReady(boundedContext(t), h.url+"/healthz"))
	return p, h
}

func TestSIGTERMLosesNoCall(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ours", "framework"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, h := startListening(t, kind)
			replies := make(chan reply, 1)
			request := h.request("GET", "/api/v1/poll", "")
			go func() { replies <- send(t, request) }()
			require.NoError(t, p.WaitFor(boundedContext(t), `"msg":"polling"`))
			code, err := p.Terminate(20 * time.Second)
			require.NoError(t, err)
			require.Zero(t, code, p.Output())
			r := <-replies
			require.Equal(t, 200, r.status)
			require.Equal(t, "nothing", r.Data)
			require.Contains(t, p.Output(), `"msg":"drained"`)
		})
	}
}

func TestProcessWithoutDatabaseIsAliveAndNotReady(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "ours", nil)
	h := &testServer{t: t, url: waitForURL(t, p)}
	require.Equal(t, 200, h.call("GET", "/healthz", "").status)
	require.Equal(t, 503, h.call("GET", "/readyz", "").status)
	require.Equal(t, 200, h.greet().status, "the built-in admin needs no database")
	require.Equal(t, 503, h.greet(as("submitter", "token")).status)
}

func TestPassedListenerIsServed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	passed, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	defer passed.Close()
	bin, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Env = []string{"FN_TEST_PROCESS=ours", "APP_HOST=192.0.2.1", "LISTEN_FDS=1", "BASIC_AUTH_PASSWORD=secret", "DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}
	cmd.ExtraFiles = []*os.File{passed}
	require.NoError(t, cmd.Start())
	// The parent's socket queues the call until the child accepts it.
	h := &testServer{t: t, url: "http://" + l.Addr().String()}
	require.Equal(t, 200, h.greet().status)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}

func TestPassedListenerMustBeOneForThisProcess(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "ours", []string{"LISTEN_FDS=1", "LISTEN_PID=1"})
	require.Contains(t, waitForURL(t, p), "127.0.0.1:")
	p = startProcess(t, "ours", []string{"LISTEN_FDS=2"})
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "must be 1")
}

func TestFrameworkServesFunctionTarget(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]int{"": 200, AllFunctions: 200, "greeter": 200, "poll": 404} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			_, h := startListening(t, "framework", "FUNCTION_TARGET="+target)
			require.Equal(t, want, h.greet().status)
			require.Equal(t, 200, h.call("GET", "/healthz", "").status)
		})
	}
	p := startProcess(t, "framework", []string{"FUNCTION_TARGET=gretter"})
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "must be the name of a function: greeter, poll")
}

func TestFrameworkRespondsLikeOurServer(t *testing.T) {
	t.Parallel()
	_, theirs := startListening(t, "framework", "FUNCTION_TARGET=greeter")
	_, ours := startListening(t, "ours", "FUNCTION_TARGET=greeter")

	for _, c := range []struct {
		method, path, body string
		option             func(*http.Request)
	}{
		{"POST", "/api/v1/greet", `{"name":"张三","times":3}`, nil},
		{"POST", "/api/v1/greet", `{"name":1,"nope":2}`, nil},
		{"POST", "/api/v1/greet", `{"name":"a"}`, header("Content-Type", "text/plain")},
		{"POST", "/api/v1/greet", `{"name":"` + strings.Repeat("a", 64<<10) + `"}`, nil},
		{"POST", "/api/v1/greet", `{"name":"a"}`, as("admin", "wrong")},
		{"GET", "/api/v1/greet/T1?name=a&times=2", ``, nil},
		{"GET", "/api/v1/greet/a%2Fb?name=a", ``, nil},
		{"DELETE", "/api/v1/greet/T1?name=a", ``, nil},
		{"GET", "/api/v1/both?name=a&loud=1", ``, nil},
		{"POST", "/api/v1/both", `{"name":"a"}`, nil},
		{"HEAD", "/api/v1/both", ``, nil},
		{"POST", "/api/v1/raw", `{`, nil},
		{"PUT", "/api/v1/empty", ``, nil},
		{"PUT", "/api/v1/greet", ``, nil},
		{"GET", "/api/v1/poll", ``, nil},
		{"GET", "/nowhere", ``, nil},
		{"GET", "/healthz", ``, nil},
	} {
		option := c.option
		if option == nil {
			option = header("X-Request-Id", "parity")
		}
		a, b := ours.call(c.method, c.path, c.body, option), theirs.call(c.method, c.path, c.body, option)
		require.Equal(t, a.status, b.status, c)
		require.Equal(t, a.body, b.body, c)
		for _, name := range []string{"Content-Type", "Cache-Control", "Allow", "WWW-Authenticate", "Content-Length", "X-Extra"} {
			require.Equal(t, a.header.Get(name), b.header.Get(name), "%v %s", c, name)
		}
	}
}
