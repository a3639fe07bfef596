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

// responseTimeout is how long a call goes on after the end of its process, to read a
// response that was already written.
const responseTimeout = 2 * time.Second

// process is the process of a function. Its listener stays open when it ends.
type process struct {
	*sandbox.Process
	transport *http.Transport
}

// startProcess starts a function on listener. Its output goes to the log through this
// process, which has to tell it from that of other functions when it ends by itself.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := startSendonce(sandbox.Command{Path: binary, Env: env, Listener: listener, Output: log})
	if err != nil {
		return nil, err
	}
	// One connection for each call, so that none is open when the process is ended.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true, ExpectContinueTimeout: bodyLimit}}, nil
}

// startSendonce starts a command with its listener as its activated socket. When this process
// is killed, so is the child, without a drain: the ports of the run are free from then
// on, and the child would send its passwords to any program that listens there.
func startSendonce(c sandbox.Command) (*sandbox.Process, error) {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "LISTEN_FDS=1", "LISTEN_PID=")
	c.OrphanSignal = syscall.SIGKILL
	return sandbox.Start(c)
}

// RoundTrip makes one call. The kernel accepts connections even without a process,
// so the end of the process ends the call.
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
