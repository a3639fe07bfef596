package sandbox

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// parentVariable makes this test binary another program (see TestMain): a parent process that tests kill, or the
// command of RunShared.
const parentVariable = "SANDBOX_TEST_PARENT"

func TestMain(m *testing.M) {
	// The tests of this package need a private server.
	os.Unsetenv("DATABASE_URL")
	switch os.Getenv(parentVariable) {
	case "":
		Main(m)
	case "process":
		child, err := Start(Command{Path: "/bin/sh", Args: []string{"-c", `trap "" TERM; echo deaf; exec sleep 100`}, RemoveIfOrphaned: os.Args[1]})
		if err == nil {
			err = child.WaitFor(context.Background(), "deaf")
		}
		printChild(child, err)
	case "postgres":
		server, err := StartPostgres(context.Background(), Options{Dir: os.Args[1], Durable: true})
		printChild(server.Process(), err)
	case "temporary":
		server, err := StartPostgres(context.Background(), Options{})
		printChild(server.Process(), err)
		fmt.Println(server.dir.root)
	case "shared":
		os.Exit(useShared())
	}
	select {}
}

func printChild(child *Process, err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("child %d.\n", child.Pid())
}

// startParent starts this binary as a parent, and returns the parent and the pid of its child.
func startParent(t *testing.T, kind string, args ...string) (p *Process, child int) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p = StartProcess(t, self, []string{parentVariable + "=" + kind}, args...)
	require.NoError(t, p.WaitFor(within(t, time.Minute), ".\n"))
	_, text, _ := strings.Cut(p.Output(), "child ")
	text, _, _ = strings.Cut(text, ".")
	child, err = strconv.Atoi(text)
	require.NoError(t, err)
	return p, child
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// gone returns a function that reports whether a process has ended. A zombie process has
// ended too.
func gone(pid int) func() bool {
	return func() bool { return commandLine(context.Background(), pid) == "" }
}

func TestProcess(t *testing.T) {
	t.Parallel()
	sh := func(t *testing.T, script string) *Process {
		return StartProcess(t, "/bin/sh", []string{"WHO=you"}, "-c", script)
	}

	t.Run("returns its output and exit code", func(t *testing.T) {
		t.Parallel()
		p := sh(t, "echo to stdout for $WHO; echo to stderr >&2; exit 7")
		require.Equal(t, 7, p.ExitCode())
		require.Equal(t, "to stdout for you\nto stderr\n", p.Output())
	})
	t.Run("writes a text that WaitFor waits for", func(t *testing.T) {
		t.Parallel()
		p := sh(t, "echo one; sleep 0.1; echo two; exec sleep 100")
		require.NoError(t, p.WaitFor(within(t, 10*time.Second), "two"))
		require.ErrorContains(t, p.WaitFor(within(t, 10*time.Millisecond), "three"), `does not contain "three"`)
	})
	t.Run("that exits ends every wait", func(t *testing.T) {
		t.Parallel()
		p := sh(t, "echo last words; exit 3")
		require.NoError(t, p.WaitFor(t.Context(), "last"))
		require.ErrorContains(t, p.WaitFor(t.Context(), "more"), "exited with 3")
		require.Regexp(t, `exited with 3: .* connection refused\nlast words\n`, p.WaitReady(t.Context(), "http://127.0.0.1:1/"))
	})
	t.Run("is ready when its URL returns 200", func(t *testing.T) {
		t.Parallel()
		calls := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls < 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		defer server.Close()
		p := sh(t, "exec sleep 100")
		require.NoError(t, p.WaitReady(within(t, 10*time.Second), server.URL))
		require.Equal(t, 3, calls)
	})
	t.Run("is terminated and returns its exit code", func(t *testing.T) {
		t.Parallel()
		p := sh(t, `trap "echo drained; exit 5" TERM; echo ready; while :; do sleep 0.05; done`)
		require.NoError(t, p.WaitFor(within(t, 10*time.Second), "ready"))
		code, err := p.Terminate(10 * time.Second)
		require.NoError(t, err)
		require.Equal(t, 5, code)
		require.Contains(t, p.Output(), "drained")
	})
	t.Run("that ignores SIGTERM is killed, which is an error", func(t *testing.T) {
		t.Parallel()
		p := sh(t, `trap "" TERM; echo ready; while :; do sleep 0.05; done`)
		require.NoError(t, p.WaitFor(within(t, 10*time.Second), "ready"))
		_, err := p.Terminate(50 * time.Millisecond)
		require.ErrorContains(t, err, "was killed")
		require.Eventually(t, gone(p.Pid()), 10*time.Second, 10*time.Millisecond)
	})
	t.Run("may be killed twice", func(t *testing.T) {
		t.Parallel()
		p := sh(t, "exec sleep 100")
		require.NoError(t, p.Kill())
		require.NoError(t, p.Kill())
		require.Equal(t, -1, p.ExitCode())
		require.Equal(t, "signal: killed", p.Ending())
	})
	t.Run("keeps the end of a long output", func(t *testing.T) {
		t.Parallel()
		p := sh(t, "i=0; while [ $i -lt 40 ]; do printf '%0100000d\\n' $i; i=$((i+1)); done; echo end")
		require.Zero(t, p.ExitCode())
		require.Len(t, p.Output(), maxOutput)
		require.True(t, strings.HasSuffix(p.Output(), "39\nend\n"))
	})
	t.Run("has the listener as descriptor 3, and its watcher does not keep the listener open", func(t *testing.T) {
		t.Parallel()
		listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		file, err := listener.File()
		require.NoError(t, err)
		require.NoError(t, listener.Close())
		p, err := Start(Command{Path: "/bin/sh", Args: []string{"-c", `[ -e /dev/fd/3 ] && [ ! -e /dev/fd/4 ] && echo found; exec sleep 100 3<&-`}, Listener: file})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Kill()) })
		require.NoError(t, p.WaitFor(within(t, 10*time.Second), "found"))
		require.NoError(t, file.Close())
		require.Eventually(t, func() bool {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				return true
			}
			conn.Close()
			return false
		}, time.Minute, 20*time.Millisecond)
	})
	t.Run("without a listener has only three descriptors", func(t *testing.T) {
		t.Parallel()
		p := sh(t, `[ ! -e /dev/fd/3 ] && [ ! -e /dev/fd/4 ]`)
		require.Zero(t, p.ExitCode())
	})
	t.Run("that cannot start writes the reason", func(t *testing.T) {
		t.Parallel()
		p := StartProcess(t, "/no/such/program", nil)
		require.Equal(t, 127, p.ExitCode())
		require.Contains(t, p.Output(), "not found")
	})
}

func TestChildEndsWithKilledParent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "orphaned")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "deep"), 0o755))
	p, child := startParent(t, "process", dir)
	require.NoError(t, p.Kill())
	require.Eventually(t, gone(child), 30*time.Second, 20*time.Millisecond, "the child ignores SIGTERM and is killed after five seconds")
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}, time.Minute, 20*time.Millisecond)
}

func TestEndedChildLeavesNoWatcher(t *testing.T) {
	t.Parallel()
	p := StartProcess(t, "/bin/sh", nil, "-c", "exit 0")
	require.Zero(t, p.ExitCode())
	// The watcher would be the last member of the child's process group.
	require.Eventually(t, func() bool {
		out, err := exec.Command("ps", "-A", "-o", "pgid=,stat=").Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); f[0] == strconv.Itoa(p.Pid()) && !strings.HasPrefix(f[1], "Z") {
				return false
			}
		}
		return true
	}, time.Minute, 20*time.Millisecond)
}

func TestStartProcessHasCleanEnvironment(t *testing.T) {
	t.Setenv("GOPATH", filepath.Join(os.Getenv("HOME"), "go"))
	bin := Build(t, hello)
	require.Equal(t, bin, Build(t, hello), "the binary is built once")
	p := StartProcess(t, bin, []string{"WHO=you"}, "a", "b")
	require.Zero(t, p.ExitCode())
	require.Equal(t, "hello you  2\n", p.Output())
}

func TestProcessWritesToItsLog(t *testing.T) {
	t.Parallel()
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	_, err = log.WriteString("before\n")
	require.NoError(t, err)
	p, err := Start(Command{Path: "/bin/sh", Args: []string{"-c", "echo out; echo err >&2"}, Log: log})
	require.NoError(t, err)
	require.Zero(t, p.ExitCode())
	require.Equal(t, "out\nerr\n", p.Output())
	require.NoError(t, p.WaitFor(t.Context(), "err"))
	require.ErrorContains(t, p.WaitFor(t.Context(), "more"), "exited with 0")
	text, err := os.ReadFile(log.Name())
	require.NoError(t, err)
	require.Equal(t, "before\nout\nerr\n", string(text))

	require.NoError(t, log.Truncate(0))
	_, err = log.WriteString("new\n")
	require.NoError(t, err)
	require.Equal(t, "new\n", p.Output(), "the file was truncated")
}
