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

// The pause before a restart doubles each time, up to longestPause. If a process ran for at least stableAfter, the pause
// after its end is firstPause again.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 30 * time.Second
	stableAfter  = time.Minute

	exitBadSettings = 2 // exit code after which there is no restart: a restart would fail, too
)

// supervisor implements child: it restarts its process when the process ends by itself, unless the exit code is exitBadSettings.
type supervisor struct {
	name  string
	start func() (*sandbox.Process, error)
	out   io.Writer
	pause time.Duration // before the first restart, and after a process that ran for stableAfter

	mu        sync.Mutex
	process   *sandbox.Process
	startedAt time.Time // of process

	ending context.Context // done when the process must not be restarted
	end    context.CancelFunc
	done   chan struct{} // closed once no process runs or will be started
	err    error         // why the last restart failed; nil = it did not; read it only after done is closed
}

// supervise starts a process, and restarts it each time it ends by itself, until it ends with exitBadSettings or a restart
// fails. pause is the pause before the first restart.
func supervise(name string, start func() (*sandbox.Process, error), out io.Writer, pause time.Duration) (*supervisor, error) {
	s := &supervisor{name: name, start: start, out: out, pause: pause, done: make(chan struct{})}
	s.ending, s.end = context.WithCancel(context.Background())
	if err := s.startNext(); err != nil {
		s.end()
		return nil, err
	}
	go s.watch()
	return s, nil
}

// startNext starts a process unless the supervisor is ending.
func (s *supervisor) startNext() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending.Err() != nil {
		return nil
	}
	p, err := s.start()
	if err != nil {
		return err
	}
	s.process, s.startedAt = p, time.Now()
	printStep(s.out, "start", fmt.Sprintf("%s (pid %d)", s.name, p.Pid()))
	return nil
}

// watch waits for the end of the process and restarts it, until Terminate is called, the process ends with exitBadSettings,
// or a restart fails.
func (s *supervisor) watch() {
	defer close(s.done)
	for delay := s.pause; ; delay = min(2*delay, longestPause) {
		p := s.current()
		<-p.Exited()
		if s.ending.Err() != nil || p.ExitCode() == exitBadSettings {
			return
		}
		if time.Since(s.startedAt) >= stableAfter {
			delay = s.pause
		}
		printStep(s.out, "ended", fmt.Sprintf("%s (pid %d) unexpectedly: %s; restarting in %s", s.name, p.Pid(), p.Ending(), delay))
		if !pause(s.ending, delay) {
			return
		}
		if s.err = s.startNext(); s.err != nil {
			return
		}
	}
}

func (s *supervisor) current() *sandbox.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// WaitReady waits until a GET of url returns 200. It fails if the current process ends first, even if it is restarted.
func (s *supervisor) WaitReady(ctx context.Context, url string) error {
	return s.current().WaitReady(ctx, url)
}

// Exited is closed once no process runs or will be started.
func (s *supervisor) Exited() <-chan struct{} { return s.done }

// ExitCode waits for Exited and returns the exit code of the last process.
func (s *supervisor) ExitCode() int {
	<-s.done
	return s.current().ExitCode()
}

// Output returns the output of the current or last process and, if a restart failed, its error.
func (s *supervisor) Output() string {
	text := s.current().Output()
	if hasEnded(s) && s.err != nil {
		text += "\n" + s.err.Error()
	}
	return text
}

// Terminate ends the process without a restart, and kills it if it still runs after grace. The code is 0 if no process
// was running.
func (s *supervisor) Terminate(grace time.Duration) (code int, err error) {
	s.mu.Lock()
	s.end()
	p := s.process
	s.mu.Unlock()
	select {
	case <-p.Exited(): // no process runs: watch pauses before a restart
	default:
		code, err = p.Terminate(grace)
	}
	<-s.done
	return code, errors.Join(err, s.err)
}
