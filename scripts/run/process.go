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

// responseTimeout is how long a call reads the response of a process that has ended.
const responseTimeout = 2 * time.Second

// process is the process of a function.
type process struct {
	*sandbox.Process
	transport *http.Transport
}

// startProcess starts a function on listener. The function writes its log through this process, which
// prints the last lines if the function does not start.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := startSendonce(sandbox.Command{Path: binary, Env: env, Listener: listener, Output: log})
	if err != nil {
		return nil, err
	}
	// Each call has its own connection, so that none is open when the process is ended.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true, ExpectContinueTimeout: bodyTimeout}}, nil
}

// startSendonce starts a command that inherits its listener (socket activation). The child is killed with
// this process, without a drain: it would send its passwords to any program that then listens on the
// ports of the run.
func startSendonce(c sandbox.Command) (*sandbox.Process, error) {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "LISTEN_FDS=1", "LISTEN_PID=")
	c.OrphanSignal = syscall.SIGKILL
	return sandbox.Start(c)
}

// RoundTrip makes one call, which ends with the process: the kernel accepts connections even without one.
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
