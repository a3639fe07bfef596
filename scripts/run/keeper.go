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

// How long a process that ended by itself stays down: twice as long each time,
// until one has lasted.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 30 * time.Second
	lasted       = time.Minute

	wrongSettings = 2 // the exit code that no further start can change
)

// keeper is a child that stays up: a process that ends by itself is started again.
type keeper struct {
	name  string
	start func() (*sandbox.Process, error)
	out   io.Writer
	pause time.Duration // before the next start

	mu      sync.Mutex
	process *sandbox.Process
	began   time.Time // of process

	ending context.Context // done once nothing is to be started any more
	end    context.CancelFunc
	done   chan struct{} // closed once nothing runs and nothing will
	err    error         // why no further process could be started; read it after done
}

// keep starts a process, and another each time that it ends by itself.
func keep(name string, start func() (*sandbox.Process, error), out io.Writer, pause time.Duration) (*keeper, error) {
	k := &keeper{name: name, start: start, out: out, pause: pause, done: make(chan struct{})}
	k.ending, k.end = context.WithCancel(context.Background())
	if err := k.begin(); err != nil {
		k.end()
		return nil, err
	}
	go k.watch()
	return k, nil
}

// begin starts a process unless all is to end.
func (k *keeper) begin() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ending.Err() != nil {
		return nil
	}
	p, err := k.start()
	if err != nil {
		return err
	}
	k.process, k.began = p, time.Now()
	progress(k.out, "start", fmt.Sprintf("%s (pid %d)", k.name, p.Pid()))
	return nil
}

// watch returns when nothing is to be started any more.
func (k *keeper) watch() {
	defer close(k.done)
	for pauses := k.pause; ; pauses = min(2*pauses, longestPause) {
		p := k.current()
		<-p.Exited()
		if k.ending.Err() != nil || p.ExitCode() == wrongSettings {
			return
		}
		if time.Since(k.began) >= lasted {
			pauses = k.pause
		}
		progress(k.out, "ended", fmt.Sprintf("%s (pid %d) by itself: %s; starts again in %s", k.name, p.Pid(), p.Ending(), pauses))
		if !pause(k.ending, pauses) {
			return
		}
		if k.err = k.begin(); k.err != nil {
			return
		}
	}
}

func (k *keeper) current() *sandbox.Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.process
}

// WaitReady waits until a GET of url is answered with 200, by the process of now.
func (k *keeper) WaitReady(ctx context.Context, url string) error {
	return k.current().WaitReady(ctx, url)
}

// Exited is closed once nothing runs and nothing will.
func (k *keeper) Exited() <-chan struct{} { return k.done }

// ExitCode waits for that end: the exit code of the last process.
func (k *keeper) ExitCode() int {
	<-k.done
	return k.current().ExitCode()
}

// Output is what the process of now, or the last one, has written, and why it
// has no successor.
func (k *keeper) Output() string {
	text := k.current().Output()
	if hasEnded(k) && k.err != nil {
		text += "\n" + k.err.Error()
	}
	return text
}

// Terminate ends the process, which then has no successor. The code is 0 where
// none was running.
func (k *keeper) Terminate(grace time.Duration) (code int, err error) {
	k.mu.Lock()
	k.end()
	p := k.process
	k.mu.Unlock()
	select {
	case <-p.Exited(): // it waits to be started again
	default:
		code, err = p.Terminate(grace)
	}
	<-k.done
	return code, errors.Join(err, k.err)
}
