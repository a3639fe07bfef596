package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// The pause before a restart doubles each time, until a process has run for
// stableAfter.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 30 * time.Second
	stableAfter  = time.Minute

	exitBadSettings = 2 // exit code of a process that would fail again
)

// supervisor is a child that restarts its process when that ends by itself.
type supervisor struct {
	name  string
	start func() (*sandbox.Process, error)
	out   io.Writer
	pause time.Duration // before the next start

	mu        sync.Mutex
	process   *sandbox.Process
	startedAt time.Time // of process

	ending context.Context // done when nothing may be started any more
	end    context.CancelFunc
	done   chan struct{} // closed once nothing runs or will be started
	err    error         // of the last start; read it after done
}

// supervise starts a process, and again each time it ends by itself.
func supervise(name string, start func() (*sandbox.Process, error), out io.Writer, pause time.Duration) (*supervisor, error) {
	k := &supervisor{name: name, start: start, out: out, pause: pause, done: make(chan struct{})}
	k.ending, k.end = context.WithCancel(context.Background())
	if err := k.startNext(); err != nil {
		k.end()
		return nil, err
	}
	go k.watch()
	return k, nil
}

// startNext starts a process unless the supervisor is ending.
func (k *supervisor) startNext() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending.Err() != nil {
		return nil
	}
	p, err := k.start()
	if err != nil {
		return err
	}
	k.process, k.startedAt = p, time.Now()
	printStep(k.out, "start", fmt.Sprintf("%s (pid %d)", k.name, p.Pid()))
	return nil
}

// watch restarts the process until the supervisor ends.
func (k *supervisor) watch() {
	defer close(k.done)
	for pauses := k.pause; ; pauses = min(2*pauses, longestPause) {
		p := k.current()
		<-p.Exited()
		if k.ending.Err() != nil || p.ExitCode() == exitBadSettings {
			return
		}
		if time.Since(k.startedAt) >= stableAfter {
			pauses = k.pause
		}
		printStep(k.out, "ended", fmt.Sprintf("%s (pid %d) unexpectedly: %s; restarting in %s", k.name, p.Pid(), p.Ending(), pauses))
		if !pause(k.ending, pauses) {
			return
		}
		if k.err = k.startNext(); k.err != nil {
			return
		}
	}
}

func (k *supervisor) current() *sandbox.Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.process
}

// WaitReady waits until a GET of url gets its response with 200, by the current process.
func (k *supervisor) WaitReady(ctx context.Context, url string) error {
	return k.current().WaitReady(ctx, url)
}

// Exited is closed once nothing runs or will be started.
func (k *supervisor) Exited() <-chan struct{} { return k.done }

// ExitCode waits for Exited and returns the exit code of the last process.
func (k *supervisor) ExitCode() int {
	<-k.done
	return k.current().ExitCode()
}

// Output is what the current or last process has written, and why it was not
// restarted.
func (k *supervisor) Output() string {
	text := k.current().Output()
	if hasEnded(k) && k.err != nil {
		text += "\n" + k.err.Error()
	}
	return text
}

// Terminate ends the process without a restart. The code is 0 if none was running.
func (k *supervisor) Terminate(grace time.Duration) (code int, err error) {
	k.mu.Lock()
	k.end()
	p := k.process
	k.mu.Unlock()
	select {
	case <-p.Exited(): // it is waiting for a restart
	default:
		code, err = p.Terminate(grace)
	}
	<-k.done
	return code, errors.Join(err, k.err)
}
