package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// responseTimeout is how long a call still waits for its response after the process has ended.
const responseTimeout = 2 * time.Second

// process is the process of a function.
type process struct {
	*sandbox.Process
	transport *http.Transport
}

// startProcess starts a process that serves a function on listener. The output of the process goes to log, and is also
// kept in memory: if the process does not start, the last lines of the output are printed.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := startSendonce(sandbox.Command{Path: binary, Env: env, Listener: listener, Output: log})
	if err != nil {
		return nil, err
	}
	// Each call has its own connection, so that no connection is open when the process is ended.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true}}, nil
}

// startSendonce starts a process that inherits the listener of c (socket activation). If `make run` is killed, the process
// is killed at once, without a drain: after the end of the run any program may listen on the ports of the run, and the
// process would send passwords there.
func startSendonce(c sandbox.Command) (*sandbox.Process, error) {
	c.Env = append(slices.Clone(c.Env), "LISTEN_FDS=1", "LISTEN_PID=")
	c.OrphanSignal = syscall.SIGKILL
	return sandbox.Start(c)
}

// RoundTrip makes one call. If the process ends, RoundTrip cancels the call after responseTimeout: the listener stays open,
// so a connection that the process has not accepted would wait without end.
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
