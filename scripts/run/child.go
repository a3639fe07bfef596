package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

const drainTimeout = 40 * time.Second // more than the default of SENDONCE_DRAIN_TIMEOUT, 25 s

// child is a process, or starts processes: the activator or a supervisor. For the methods see sandbox.Process.
type child interface {
	WaitReady(ctx context.Context, url string) error
	Exited() <-chan struct{}
	ExitCode() int
	Output() string
	Terminate(grace time.Duration) (code int, err error)
}

// drain terminates a child and prints that it ended, unless it has ended already.
func drain(name string, child child, out io.Writer) error {
	if hasEnded(child) {
		return nil
	}
	if err := terminate(child); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	printStep(out, "drained", name)
	return nil
}

// terminate ends a child once its calls in progress have ended, and kills it if this takes longer than drainTimeout. A kill
// or an exit code other than 0 is an error.
func terminate(child child) error {
	code, err := child.Terminate(drainTimeout)
	if err == nil && code != 0 {
		err = fmt.Errorf("it ended with %d:\n%s", code, tail(child.Output()))
	}
	return err
}

func hasEnded(child child) bool {
	select {
	case <-child.Exited():
		return true
	default:
		return false
	}
}
