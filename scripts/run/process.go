package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// guard runs "$@" with the listener on fd 3. The watcher that it leaves behind
// reads the pipe on fd 4: a line there means that the process was waited for,
// the end of the pipe without a line that its owner is dead.
const guard = `pid=$$
( (
	exec >/dev/null 2>&1 3<&-
	read -r _ <&4 && exit 0
	kill -TERM "$pid"
) & )
exec 4<&-
exec "$@"`

const (
	wordsKept  = 8 << 10         // bytes of a process's output
	unanswered = 2 * time.Second // how long a call outlives its process: an answer that was written is read by then
)

// process is a function at work on a listener that stays open when it ends.
type process struct {
	cmd       *exec.Cmd
	life      *os.File
	words     lastWords
	done      chan struct{} // closed once it has ended
	transport *http.Transport
}

// startProcess starts binary with listener as the socket that it is activated with.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	p := &process{
		cmd: exec.Command("/bin/sh", "-c", guard, "sh", binary), life: write, words: lastWords{log: log}, done: make(chan struct{}),
		// One connection for each call: none is left over when the process is to end.
		transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	}
	p.cmd.Env, p.cmd.ExtraFiles = env, []*os.File{listener, read}
	p.cmd.Stdout, p.cmd.Stderr = &p.words, &p.words
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C in the terminal reaches us only
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		write.Close()
		return nil, err
	}
	go p.wait()
	return p, nil
}

func (p *process) wait() {
	// How it ended is read from ProcessState.
	_ = p.cmd.Wait()
	_, _ = p.life.WriteString("\n")
	p.life.Close()
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// RoundTrip is one call. The kernel takes connections whether or not a process
// is there to accept them, so the end of the process ends the call.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		select {
		case <-answered:
			return
		case <-p.done:
		}
		select {
		case <-answered:
		case <-time.After(unanswered):
			cancel()
		}
	}()
	return p.transport.RoundTrip(r.WithContext(ctx))
}

// terminate lets the process finish what it has under way.
func (p *process) terminate(grace time.Duration) error {
	if p.hasEnded() {
		return nil
	}
	// One that has ended meanwhile is what we want.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("process %d did not end within %s of SIGTERM and was killed", p.pid(), grace)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("process %d: %s:\n%s", p.pid(), p.cmd.ProcessState, tail(p.words.String()))
	}
	return nil
}

// lastWords passes everything on to log and keeps the end of it.
type lastWords struct {
	log  io.Writer
	mu   sync.Mutex
	kept []byte
}

func (l *lastWords) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, b...)
	l.kept = l.kept[max(0, len(l.kept)-wordsKept):]
	return l.log.Write(b)
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.kept)
}
