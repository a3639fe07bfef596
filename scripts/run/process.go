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

// answerTimeout is how long a call goes on after the end of its process, to read an
// answer that was already written.
const answerTimeout = 2 * time.Second

// process is the process of a function. Its listener stays open when it ends.
type process struct {
	*sandbox.Process
	transport *http.Transport
}

// startProcess starts a function on listener.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := startSendonce(binary, nil, env, listener, log)
	if err != nil {
		return nil, err
	}
	// One connection for each call, so that none is open when the process is ended.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true}}, nil
}

// startSendonce starts binary with listener as its activated socket. When this process
// is killed, so is the child, without a drain: the ports of the run are free from then
// on, and the child would send its passwords to any program that listens there.
func startSendonce(binary string, args, env []string, listener *os.File, log io.Writer) (*sandbox.Process, error) {
	return sandbox.Start(sandbox.Command{
		Path: binary, Args: args, Env: append(env[:len(env):len(env)], "LISTEN_FDS=1", "LISTEN_PID="), Listener: listener, Output: log,
		OrphanSignal: syscall.SIGKILL,
	})
}

// RoundTrip makes one call. The kernel accepts connections even without a process,
// so the end of the process ends the call.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		select {
		case <-answered:
			return
		case <-p.Exited():
		}
		select {
		case <-answered:
		case <-time.After(answerTimeout):
			cancel()
		}
	}()
	return p.transport.RoundTrip(r.WithContext(ctx))
}
