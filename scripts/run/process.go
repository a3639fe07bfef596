package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// responseTimeout is how long a call continues after its process has ended, to read a
// response that the process had already written.
const responseTimeout = 2 * time.Second

// process is the process of a function. Its listener stays open after it has ended.
type process struct {
	*sandbox.Process
	transport *http.Transport
}

// startProcess starts a function on listener. Its output goes to the log through this
// process, which prints the last lines if the function ends by itself.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := startSendonce(sandbox.Command{Path: binary, Env: env, Listener: listener, Output: log})
	if err != nil {
		return nil, err
	}
	// One connection for each call, so that none is open when the process is ended.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true, ExpectContinueTimeout: bodyTimeout}}, nil
}

// startSendonce starts a command that inherits its listener (socket activation). When this process is
// killed, the child is killed at once, without a drain: otherwise it would send its passwords to
// any program that then listens on the free ports of the run.
func startSendonce(c sandbox.Command) (*sandbox.Process, error) {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "LISTEN_FDS=1", "LISTEN_PID=")
	c.OrphanSignal = syscall.SIGKILL
	return sandbox.Start(c)
}

// RoundTrip makes one call. It ends the call when the process ends, because the kernel
// accepts connections even without a process.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	responded := make(chan struct{})
	defer close(responded)
	go func() {
		select {
		case <-responded:
			return
		case <-p.Exited():
		}
		select {
		case <-responded:
		case <-time.After(responseTimeout):
			cancel()
		}
	}()
	return p.transport.RoundTrip(r.WithContext(ctx))
}
