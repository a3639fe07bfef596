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

// unanswered is how long a call outlives its process: an answer that was
// written is read by then.
const unanswered = 2 * time.Second

// process is a function at work on a listener that stays open when it ends.
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
	// One connection for each call: none is left over when the process is to end.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true}}, nil
}

// startSendonce starts binary with listener as the socket that it is activated with.
// When this process is killed, so is the child, without a drain: the ports of the run
// are free from that moment on, and the child would send its passwords to whoever
// takes them.
func startSendonce(binary string, args, env []string, listener *os.File, log io.Writer) (*sandbox.Process, error) {
	return sandbox.Start(sandbox.Command{
		Path: binary, Args: args, Env: append(env[:len(env):len(env)], "LISTEN_FDS=1", "LISTEN_PID="), Listener: listener, Output: log,
		OrphanSignal: syscall.SIGKILL,
	})
}

// RoundTrip is one call. The kernel takes connections whether or not a process
// is there to accept them, so the end of the process ends the call.
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
		case <-time.After(unanswered):
			cancel()
		}
	}()
	return p.transport.RoundTrip(r.WithContext(ctx))
}
