package main

import (
	"context"
	"io"
	"net/http"
	"os"
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

// startProcess starts binary with listener as the socket that it is activated with.
func startProcess(binary string, env []string, listener *os.File, log io.Writer) (*process, error) {
	p, err := sandbox.Start(sandbox.Command{Path: binary, Env: env, Listener: listener, Output: log})
	if err != nil {
		return nil, err
	}
	// One connection for each call: none is left over when the process is to end.
	return &process{p, &http.Transport{DisableKeepAlives: true, DisableCompression: true}}, nil
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
