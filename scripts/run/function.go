package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"os"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	startTimeout = 30 * time.Second
	maxBody      = 16 << 20 // bytes; no function accepts more
)

// function is one function of the catalogue, with PROCS=1. Its process starts with a call, and runs while the function has
// calls and for idleTimeout after the last call. One lock guards the start, the end and the number of calls, so no call
// reaches a process that is being ended: the call waits for the next process.
type function struct {
	name        string
	binary      string
	env         []string
	idleTimeout time.Duration // a process without calls is ended after this time
	log         io.Writer
	out         io.Writer
	url         string   // of socket
	socket      *os.File // the listener, which every process inherits

	mu        sync.Mutex
	process   *process // nil before the first start and after an end
	proxy     http.Handler
	calls     int         // number of calls in progress
	idleSince time.Time   // when calls became 0
	idleTimer *time.Timer // calls endWhenIdle
	ending    bool        // close was called: no process may be started
}

// listen opens a port for f on the loopback address.
func (f *function) listen() error {
	listener, err := listenLocally(context.Background(), 0)
	if err != nil {
		return err
	}
	defer listener.Close() // f.socket is a copy, which stays open
	f.url = "http://" + listener.Addr().String()
	f.socket, err = listener.File()
	return err
}

func (f *function) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := readBody(w, r); err != nil {
		respondError(w, http.StatusBadRequest, task.CodeInvalid, "the body cannot be read: "+err.Error())
		return
	}
	proxy, err := f.beginCall()
	if err != nil {
		respondBusy(w, f.name, err)
		return
	}
	defer f.endCall()
	defer httpserver.KeepConnectionOpen(r.Context(), httpserver.NoAccount)()
	proxy.ServeHTTP(w, r)
}

// readBody reads the whole body of a call before the call is forwarded: net/http closes the body when the response begins,
// and http.Transport drops a response if a read of the body fails. readBody also removes the read and write deadlines of
// the connection: only the function decides how long a response may take.
func readBody(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return err
	}
	if r.ContentLength != 0 {
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	}
	connection := http.NewResponseController(w)
	return errors.Join(connection.SetReadDeadline(time.Time{}), connection.SetWriteDeadline(time.Time{}))
}

// beginCall starts a process if none runs, counts a call, and returns a handler that forwards the call to the process.
// After the call, use endCall, unless beginCall returned an error.
func (f *function) beginCall() (http.Handler, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ending {
		return nil, errEnding
	}
	if f.process != nil && hasEnded(f.process) {
		f.clearEnded(f.process)
	}
	if f.process == nil {
		if err := f.start(); err != nil {
			printStep(f.out, "failed", fmt.Sprintf("%s did not start: %v", f.name, err))
			return nil, err
		}
	}
	f.calls++
	return f.proxy, nil
}

func (f *function) endCall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls--; f.calls > 0 {
		return
	}
	f.idleSince = time.Now()
	if f.idleTimer == nil {
		f.idleTimer = time.AfterFunc(f.idleTimeout, f.endWhenIdle)
		return
	}
	f.idleTimer.Reset(f.idleTimeout)
}

// start starts a process and waits until it responds. The caller holds f.mu.
func (f *function) start() error {
	p, err := startProcess(f.binary, f.env, f.socket, f.log)
	if err != nil {
		return err
	}
	client := http.Client{Transport: p, Timeout: startTimeout}
	res, err := client.Get(f.url + "/healthz")
	if err != nil {
		if !hasEnded(p) {
			return errors.Join(err, p.Kill())
		}
		return fmt.Errorf("%s:\n%s", p.Ending(), tail(p.Output()))
	}
	res.Body.Close()
	f.process, f.proxy = p, f.forward(p)
	printStep(f.out, "start", fmt.Sprintf("%s (pid %d)", f.name, p.Pid()))
	go f.watch(p)
	return nil
}

// watch waits for the end of p, and calls clearEnded.
func (f *function) watch(p *process) {
	<-p.Exited()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clearEnded(p)
}

// clearEnded sets f.process to nil and prints that p ended by itself. It does nothing if f.process is not p: then f has
// ended p, or clearEnded was called before. The caller holds f.mu.
func (f *function) clearEnded(p *process) {
	if f.process == p {
		f.process = nil
		printStep(f.out, "ended", fmt.Sprintf("%s (pid %d) unexpectedly: %s", f.name, p.Pid(), p.Ending()))
	}
}

// forward returns a handler that sends each call to p as if the client had called p directly.
func (f *function) forward(p *process) http.Handler {
	return &httputil.ReverseProxy{
		Transport:     p,
		FlushInterval: -1,
		ErrorLog:      log.New(f.log, "", log.LstdFlags),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", f.url[len("http://"):]
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Host = r.In.Host
			r.Out.Header.Del("Expect") // the body has arrived
			if forwarded := r.In.Header["X-Forwarded-For"]; forwarded != nil {
				r.Out.Header["X-Forwarded-For"] = forwarded
			}
		},
		// The outcome of the call is unknown: close the connection, as the end of the process would.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}

// endWhenIdle ends the process if there has been no call for idleTimeout.
func (f *function) endWhenIdle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls > 0 || f.process == nil || hasEnded(f.process) || time.Since(f.idleSince) < f.idleTimeout {
		return
	}
	p := f.process
	f.process = nil // so that clearEnded prints nothing
	if err := terminate(p); err != nil {
		printStep(f.out, "failed", fmt.Sprintf("%s ended with an error: %v", f.name, err))
		return
	}
	printStep(f.out, "idle", fmt.Sprintf("%s after %s", f.name, f.idleTimeout))
}

// close ends the process once its calls in progress have ended, and closes the socket. For later calls beginCall returns
// errEnding.
func (f *function) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ending = true
	defer f.socket.Close()
	p := f.process
	if p == nil || hasEnded(p) {
		return nil
	}
	f.process = nil // so that clearEnded prints nothing
	return drain(f.name, p, f.out)
}
