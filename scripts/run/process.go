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

// responseTimeout is how long a call still waits for the response of a process that has ended.
const responseTimeout = 2 * time.Second

// process is the process of a function.
type process struct {
	*sandbox.Process
	transport *http.Transport
}

// startProcess starts a function on listener. The output of the function goes to log and is kept, because the last lines
// are printed if the function does not start.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := startSendonce(sandbox.Command{Path: binary, Env: env, Listener: listener, Output: log})
	if err != nil {
		return nil, err
	}
	// Each call has its own connection, so that no connection is open when the process is ended.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true}}, nil
}

// startSendonce starts a command that inherits its listener (socket activation). If this process is killed, the child is
// killed too, without a drain: the child would send its passwords to any program that then listens on the ports of the
// run.
func startSendonce(c sandbox.Command) (*sandbox.Process, error) {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "LISTEN_FDS=1", "LISTEN_PID=")
	c.OrphanSignal = syscall.SIGKILL
	return sandbox.Start(c)
}

// RoundTrip makes one call. The call ends if the process ends: the kernel accepts connections even without a process.
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
