package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

const startTimeout = 30 * time.Second

var errEnding = errors.New("the run is ending")

// function is one function of the catalogue, with a process while there are calls
// for it. One lock protects starting, ending and the number of calls, so that no call
// reaches a process that is being ended: it waits for the next process.
type function struct {
	name        string
	binary      string
	env         []string
	idleTimeout time.Duration // a process without calls for this long is ended
	log         io.Writer
	out         io.Writer
	url         string
	socket      *os.File // the listener, which every process inherits

	mu        sync.Mutex
	process   *process // nil before the first start and after an end
	proxy     http.Handler
	calls     int
	idleSince time.Time   // since when calls is 0
	idleTimer *time.Timer // calls endWhenIdle
	ending    bool
}

// listen opens a port for f on the loopback address.
func (f *function) listen() error {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	// f.socket is a copy, which keeps the socket open.
	defer listener.Close()
	f.url = "http://" + listener.Addr().String()
	f.socket, err = listener.File()
	return err
}

func (f *function) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	proxy, err := f.beginCall()
	if err != nil {
		busy(w, f.name, err)
		return
	}
	defer f.endCall()
	call := newBoundedCall(w, r)
	defer call.end()
	proxy.ServeHTTP(call, r)
}

// beginCall counts a call and returns a handler that forwards it to the process, which it starts if
// necessary. Unless it returns an error, the caller must call endCall.
func (f *function) beginCall() (http.Handler, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ending {
		return nil, errEnding
	}
	if f.process != nil && hasEnded(f.process) {
		f.forget(f.process)
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

// start starts a process and waits until it responds; mu is held.
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

// watch waits until a process ends and prints that, unless f ended it. The next call starts another.
func (f *function) watch(p *process) {
	<-p.Exited()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(p)
}

func (f *function) forget(p *process) {
	if f.process == p {
		f.process = nil
		printStep(f.out, "ended", fmt.Sprintf("%s (pid %d) unexpectedly: %s", f.name, p.Pid(), p.Ending()))
	}
}

// copyBuffers makes the buffers of responses smaller than the default of 32 KiB: a client that does not read holds one.
type copyBuffers struct{}

func (copyBuffers) Get() []byte { return make([]byte, 4<<10) }
func (copyBuffers) Put([]byte)  {}

// forward sends calls to p as if they had come to it directly.
func (f *function) forward(p *process) http.Handler {
	return &httputil.ReverseProxy{
		Transport:     p,
		FlushInterval: -1,
		BufferPool:    copyBuffers{},
		ErrorLog:      log.New(f.log, "", log.LstdFlags),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", f.url[len("http://"):]
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Host = r.In.Host
			if r.Out.Body != nil {
				r.Out.Header.Set("Expect", "100-continue") // so that the function can reject the call before its body arrives
			}
			if forwarded := r.In.Header["X-Forwarded-For"]; forwarded != nil {
				r.Out.Header["X-Forwarded-For"] = forwarded
			}
		},
		// The outcome of the call is unknown. So its connection is closed, as the process
		// itself would have done by ending.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}

func (f *function) endWhenIdle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls > 0 || f.process == nil || hasEnded(f.process) || time.Since(f.idleSince) < f.idleTimeout {
		return
	}
	if err := f.end(); err != nil {
		printStep(f.out, "failed", fmt.Sprintf("%s ended with an error: %v", f.name, err))
		return
	}
	printStep(f.out, "idle", fmt.Sprintf("%s after %s", f.name, f.idleTimeout))
}

// end ends the process, without a message of watch; mu is held.
func (f *function) end() error {
	p := f.process
	f.process = nil
	return finish(p)
}

// close ends the process after its calls in progress, and closes the socket.
func (f *function) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ending = true
	defer f.socket.Close()
	if f.process == nil || hasEnded(f.process) {
		return nil
	}
	if err := f.end(); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	printStep(f.out, "drained", f.name)
	return nil
}

// busy returns 503 to a call that reached no process.
func busy(w http.ResponseWriter, name string, err error) {
	message := "the function " + name + " did not start"
	if errors.Is(err, errEnding) {
		message = "this instance is ending"
	}
	w.Header().Set("Retry-After", "1")
	respondError(w, http.StatusServiceUnavailable, task.CodeServerBusy, message)
}

// respondError responds to a call that reaches no function.
func respondError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// The caller may have closed the connection.
	_ = json.NewEncoder(w).Encode(api.Envelope{Code: status, Message: message, Error: code})
}
