package sandbox

import (
	"bytes"
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

// guard is a shell script that starts a watcher and then executes "$@". The watcher reads the pipe on fd 4: a line means
// that the process has ended, so the watcher exits; the end of the pipe without a line means that the parent is dead, so
// the watcher ends the process. The watcher starts before the exec, is not a child of the process, and closes the listener
// that may be on fd 3.
const guard = `pid=$$ sig=$1 remove=$2
shift 2
( (
	exec >/dev/null 2>&1 3<&-
	read -r _ <&4 && exit 0
	kill -"$sig" "$pid"
	n=0
	while kill -0 "$pid" && [ $n -lt 50 ]; do sleep 0.1; n=$((n + 1)); done
	[ $n -lt 50 ] || kill -KILL "$pid"
	[ -z "$remove" ] || rm -rf "$remove"
) & )
exec 4<&-
exec "$@"`

const maxOutput = 1 << 20 // bytes of a process's output that are kept

// Command is a program for Start.
type Command struct {
	Path   string
	Args   []string
	Env    []string  // the complete environment; nil = that of this process
	Dir    string    // working directory; "" = that of this process
	Output io.Writer // for stdout and stderr, in addition to Process.Output; nil = none

	// Log becomes the child's stdout and stderr: a file that is open for appending. If other processes also write to
	// the file, Process.Output returns their lines, too. nil = none.
	Log *os.File

	// Listener becomes file descriptor 3 of the child, for socket activation. It stays open in this process. nil = none.
	Listener *os.File

	// If this process dies before the child, the child gets OrphanSignal (0 = SIGTERM), and SIGKILL if it still runs five
	// seconds later. Then the directory RemoveIfOrphaned is removed; "" = none.
	OrphanSignal     syscall.Signal
	RemoveIfOrphaned string

	user *syscall.Credential // nil = the user of this process
}

// Process is a child in a process group of its own, so that Ctrl-C in the terminal does not interrupt the child. All
// methods may be called at any time and from any goroutine.
type Process struct {
	cmd      *exec.Cmd
	watcher  *os.File // the pipe to the watcher
	output   output
	log      string // the name of Command.Log, which is read instead of output; "" = none
	logStart int64  // the size of the log before the child started
	done     chan struct{}
}

// Start starts a child. If this process dies, the child ends within about five seconds (see OrphanSignal).
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

	p := &Process{watcher: write, output: output{to: c.Output}, done: make(chan struct{})}
	args := []string{"-c", guard, "sh", fmt.Sprint(int(sig)), c.RemoveIfOrphaned, c.Path}
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
	_ = p.cmd.Wait() // the result is in p.cmd.ProcessState
	_, _ = p.watcher.WriteString("\n")
	p.watcher.Close()
	close(p.done)
}

// Pid returns the process id of the child.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed when the child has ended and its output is complete.
func (p *Process) Exited() <-chan struct{} { return p.done }

// ExitCode waits for the end of the child and returns its exit code, or -1 if a signal
// ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Ending waits for the end of the child and describes it: "exit status 1", "signal: killed".
func (p *Process) Ending() string {
	<-p.done
	return p.cmd.ProcessState.String()
}

// Output returns the child's stdout and stderr, at most the last mebibyte.
func (p *Process) Output() string {
	if p.log == "" {
		return p.output.String()
	}
	text, err := readFrom(p.log, p.logStart)
	if err != nil {
		return err.Error()
	}
	return text
}

// readFrom returns a file from an offset to its end, at most the last maxOutput bytes. A file
// that is shorter than the offset has been truncated: it is read from 0.
func readFrom(name string, offset int64) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	state, err := f.Stat()
	if err != nil {
		return "", err
	}
	if offset > state.Size() {
		offset = 0
	}
	offset = max(offset, state.Size()-maxOutput)
	text, err := io.ReadAll(io.NewSectionReader(f, offset, state.Size()-offset))
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

// Terminate sends SIGTERM, waits until the child has ended, and returns the exit code. If the child has not ended after
// grace, Terminate kills the child and returns an error.
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

// WaitFor waits until the output contains text. It fails if ctx ends or the child exits first.
func (p *Process) WaitFor(ctx context.Context, text string) error {
	return p.retry(ctx, func() error {
		if !strings.Contains(p.Output(), text) {
			return fmt.Errorf("the output does not contain %q", text)
		}
		return nil
	})
}

// WaitReady waits until a GET of url returns 200. It fails if ctx ends or the child exits first.
func (p *Process) WaitReady(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second}
	defer client.CloseIdleConnections()
	return p.retry(ctx, func() error {
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
	})
}

// retry calls try until it returns no error. It fails if ctx ends or the child exits first.
func (p *Process) retry(ctx context.Context, try func() error) error {
	for {
		exited := p.hasExited() // checked before try, so that the last try reads all output
		err := try()
		switch {
		case err == nil:
			return nil
		case exited:
			return fmt.Errorf("process %d exited with %d: %w\n%s", p.Pid(), p.ExitCode(), err, p.Output())
		case ctx.Err() != nil:
			return fmt.Errorf("process %d is not ready in time: %w\n%s", p.Pid(), err, p.Output())
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-p.done:
		case <-ctx.Done():
		}
	}
}

func (p *Process) hasExited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// runToEnd runs a program until it exits. If ctx ends first, it kills the program and returns an error.
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

// output keeps the last maxOutput bytes that are written to it, and copies all bytes to another writer.
type output struct {
	to   io.Writer // nil = none
	mu   sync.Mutex
	tail []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, b...)
	if len(o.tail) > 2*maxOutput {
		o.tail = bytes.Clone(o.tail[len(o.tail)-maxOutput:])
	}
	if o.to != nil {
		return o.to.Write(b)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.tail[max(0, len(o.tail)-maxOutput):])
}
