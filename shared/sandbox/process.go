package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// guard starts a watcher and then executes "$@". The watcher reads the pipe on fd 4: a
// line means that the process has ended and its parent has waited for it; the end of the
// pipe without a line means that the parent is dead. The watcher starts before the exec,
// so the process is watched at all times. The watcher is not a child of the process. It
// closes the listener that may be on fd 3.
const guard = `pid=$$ sig=$1 sweep=$2
shift 2
( (
	exec >/dev/null 2>&1 3<&-
	read -r _ <&4 && exit 0
	kill -"$sig" "$pid"
	n=0
	while kill -0 "$pid" && [ $n -lt 50 ]; do sleep 0.1; n=$((n + 1)); done
	[ $n -lt 50 ] || kill -KILL "$pid"
	[ -z "$sweep" ] || rm -rf "$sweep"
) & )
exec 4<&-
exec "$@"`

// outputKept is how many bytes of a process's output are kept.
const outputKept = 1 << 20

// Command is a program for Start.
type Command struct {
	Path   string
	Args   []string
	Env    []string  // the whole environment; nil = that of this process
	Dir    string    // working directory; "" = that of this process
	Output io.Writer // for stdout and stderr, in addition to Process.Output; nil = none

	// Log is opened for appending and becomes the child's stdout and stderr. Other processes
	// may write to it, too; Process.Output has their lines as well. nil = none.
	Log *os.File

	// Listener becomes the child's descriptor 3, for socket activation. It stays open
	// here. nil = none.
	Listener *os.File

	// If this process dies before the child, the child gets OrphanSignal (0 = SIGTERM)
	// and SIGKILL five seconds later. Then the directory OrphanSweep is removed.
	OrphanSignal syscall.Signal
	OrphanSweep  string

	user *syscall.Credential // nil = the user of this process
}

// Process is a child in a process group of its own, so that Ctrl-C in the terminal does
// not interrupt it. All methods may be called at any time and from any goroutine.
type Process struct {
	cmd      *exec.Cmd
	life     *os.File // the watcher's pipe
	output   output
	log      string // the file that the child writes to, in place of output; "" = none
	logStart int64  // the size of that file before the child started
	done     chan struct{}
}

// Start starts c. The child never outlives this process for long.
func Start(c Command) (*Process, error) {
	sig := c.OrphanSignal
	if sig == 0 {
		sig = syscall.SIGTERM
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Path), err)
	}
	defer read.Close()

	p := &Process{life: write, done: make(chan struct{})}
	p.output.to, p.output.changed = c.Output, make(chan struct{})
	args := []string{"-c", guard, "sh", fmt.Sprint(int(sig)), c.OrphanSweep, c.Path}
	p.cmd = exec.Command("/bin/sh", append(args, c.Args...)...)
	p.cmd.Env, p.cmd.Dir = c.Env, c.Dir
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if c.Log != nil {
		p.cmd.Stdout, p.cmd.Stderr, p.log = c.Log, c.Log, c.Log.Name()
		if state, err := c.Log.Stat(); err == nil {
			p.logStart = state.Size()
		}
	}
	p.cmd.ExtraFiles = []*os.File{c.Listener, read}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.user}
	// Grandchildren may keep the output open after a SIGKILL of the child.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.Path), err)
	}
	go p.wait()
	return p, nil
}

func (p *Process) wait() {
	_ = p.cmd.Wait() // see ProcessState
	_, _ = p.life.WriteString("\n")
	p.life.Close()
	close(p.done)
}

// Pid is the process id of the child itself.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed when the child has ended and its output is complete.
func (p *Process) Exited() <-chan struct{} { return p.done }

// ExitCode waits for the end of the child and returns its exit code, or -1 if a signal
// ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Ending waits for the end of the child and describes it, as in "exit status 1" or
// "signal: killed".
func (p *Process) Ending() string {
	<-p.done
	return p.cmd.ProcessState.String()
}

// Output returns what the child has written to stdout and stderr, at most the last
// mebibyte.
func (p *Process) Output() string {
	if p.log == "" {
		return p.output.String()
	}
	text, err := readEnd(p.log, p.logStart)
	if err != nil {
		return err.Error()
	}
	return text
}

// readEnd returns the content of a file from the offset after on, at most the last outputKept bytes. A
// file that is shorter than after has been truncated: its content begins at 0.
func readEnd(name string, after int64) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	state, err := f.Stat()
	if err != nil {
		return "", err
	}
	if after > state.Size() {
		after = 0
	}
	after = max(after, state.Size()-outputKept)
	text, err := io.ReadAll(io.NewSectionReader(f, after, state.Size()-after))
	return string(text), err
}

// Signal sends sig to the child, if it has not ended.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Kill ends the child with SIGKILL and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %d: %w", p.Pid(), err)
	}
	<-p.done
	return nil
}

// Terminate sends SIGTERM and returns the exit code. A child that has not ended
// after grace is killed, which is an error.
func (p *Process) Terminate(grace time.Duration) (code int, err error) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return -1, fmt.Errorf("terminate %d: %w", p.Pid(), err)
	}
	if p.endsWithin(grace) {
		return p.ExitCode(), nil
	}
	if err := p.Kill(); err != nil {
		return -1, err
	}
	return -1, fmt.Errorf("process %d did not end within %s of SIGTERM and was killed", p.Pid(), grace)
}

func (p *Process) endsWithin(d time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(d):
		return false
	}
}

// WaitFor waits until the output contains text. It fails if ctx ends or the child exits
// first.
func (p *Process) WaitFor(ctx context.Context, text string) error {
	if p.log != "" {
		return p.retry(ctx, func() error {
			if !strings.Contains(p.Output(), text) {
				return fmt.Errorf("it has not written %q", text)
			}
			return nil
		})
	}
	for {
		seen, changed := p.output.snapshot()
		if strings.Contains(seen, text) {
			return nil
		}
		select {
		case <-changed:
		case <-p.done:
			if strings.Contains(p.Output(), text) {
				return nil
			}
			return fmt.Errorf("process %d exited with %d before it wrote %q:\n%s", p.Pid(), p.ExitCode(), text, p.Output())
		case <-ctx.Done():
			return fmt.Errorf("process %d has not written %q: %w\n%s", p.Pid(), text, ctx.Err(), p.Output())
		}
	}
}

// WaitReady waits until a GET of url returns 200. It fails if ctx
// ends or the child exits first.
func (p *Process) WaitReady(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	return p.retry(ctx, func() error { return ready(ctx, client, url) })
}

// retry calls try until it returns no error. It fails if ctx ends or the child exits first.
func (p *Process) retry(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-p.done:
			return fmt.Errorf("process %d exited with %d before it was ready:\n%s", p.Pid(), p.ExitCode(), p.Output())
		case <-ctx.Done():
			return fmt.Errorf("process %d is not ready: %w\n%s", p.Pid(), err, p.Output())
		}
	}
}

// runToEnd runs a program until it exits. It kills the program if ctx ends first.
func runToEnd(ctx context.Context, c Command) (*Process, error) {
	p, err := Start(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.Exited():
		return p, nil
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(c.Path), ctx.Err()), p.Kill())
	}
}

func ready(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s returned %s", url, res.Status)
	}
	return nil
}

// Compile builds packages as `make build` does, commit included, so that what is tested
// and measured is what is released. output is the binary, or the directory of the
// binaries if it ends with a slash. A binary that is up to date is not written again. A binary
// that RunShared has built is copied.
func Compile(ctx context.Context, output string, pkgs ...string) error {
	if len(pkgs) == 1 && !strings.HasSuffix(output, "/") {
		if copied, err := copyShared(output, pkgs[0]); copied {
			return err
		}
	}
	stamp := "-ldflags=-s -w -X github.com/sendonce/sendonce/shared/fn.commit=" + commit(ctx)
	build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", output, "-trimpath", "-gcflags=all=-dwarf=false", stamp}, pkgs...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(pkgs, " "), err, text)
	}
	return nil
}

// commit returns the same text as COMMIT in the Makefile.
func commit(ctx context.Context) string {
	if set := os.Getenv("COMMIT"); set != "" {
		return set
	}
	described, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*").Output()
	if err != nil {
		return "" // no git, or no repository
	}
	return strings.TrimSpace(string(described))
}

// output keeps the end of what is written to it and writes everything to another writer.
type output struct {
	to      io.Writer
	mu      sync.Mutex
	kept    []byte
	changed chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, b...)
	if len(o.kept) > 2*outputKept {
		o.kept = append([]byte(nil), o.kept[len(o.kept)-outputKept:]...)
	}
	close(o.changed)
	o.changed = make(chan struct{})
	if o.to != nil {
		return o.to.Write(b)
	}
	return len(b), nil
}

func (o *output) String() string {
	seen, _ := o.snapshot()
	return seen
}

func (o *output) snapshot() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept[max(0, len(o.kept)-outputKept):]), o.changed
}
