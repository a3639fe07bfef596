package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	activatorConnections = 1024
	callReadTimeout      = 10 * time.Second // until the header and the body of a call have arrived
)

// routes maps paths to functions; the longest match decides. A path that ends with a slash also matches the paths below
// it. "/{$}" matches only "/".
var routes = map[string]string{
	"/":                   "submit", // the probes, and unknown paths
	"/{$}":                "console",
	"/console":            "console",
	"/console/":           "console",
	"/docs":               "console",
	"/docs/":              "console",
	"/openapi.yaml":       "console",
	"/openapi.json":       "console",
	"/api/v1/sms/":        "submit",
	"/api/v1/sms/tasks/":  "claim",
	"/api/v1/sms/report":  "report",
	"/api/v1/sms/report/": "report",
	"/api/v1/admin/":      "admin",
	"/exporter/":          "exporter",
	"/api/v1/messages":    "messages",
	"/api/v1/messages/":   "messages",
	"/api/v1/stream/":     "stream",
	"/api/v1/subscribe/":  "subscribe",
	"/api/v1/webhooks/":   "webhooks",
	"/events/sweep":       "sweep",
	"/events/relay":       "relay",
	"/events/deliver":     "deliver",
	"/events/save":        "save",
	"/events/wechat":      "wechat",
}

// functionOf returns the name of the function that serves path, or "" if path does not begin with a slash: the target of
// CONNECT example.com:443, for example.
func functionOf(path string) string {
	best := ""
	for route := range routes {
		matches := path == strings.TrimSuffix(route, "{$}") || strings.HasSuffix(route, "/") && strings.HasPrefix(path, route)
		if matches && len(route) > len(best) {
			best = route
		}
	}
	return routes[best]
}

// activator serves the port of the API with PROCS=1. It starts the process of a function when the function is called.
type activator struct {
	functions map[string]*function
	http      *httpserver.Server
	done      chan struct{} // closed once the port is no longer served
	err       error         // why Serve ended; nil = because of Terminate; read it only after done is closed
}

// startActivator opens a port for each function, and serves the reserved port. It starts no process yet.
func startActivator(s settings, binary string, env []string, nats broker, port *reservedPort, logs, out io.Writer) (*activator, error) {
	a := &activator{functions: map[string]*function{}, done: make(chan struct{})}
	for _, name := range routes {
		if a.functions[name] != nil {
			continue
		}
		f := &function{name: name, binary: binary, idleTimeout: s.procsIdle, log: logs, out: out}
		f.env = append(withOnlySecretsOf(nats.withLogin(name, env), name), "FUNCTION_TARGET="+name)
		if err := f.listen(); err != nil {
			return nil, errors.Join(fmt.Errorf("listen for %s: %w", name, err), a.close())
		}
		a.functions[name] = f
	}
	listener, err := net.FileListener(port.socket) // a copy: Shutdown closes only the copy
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.http = httpserver.New(a, activatorConnections, log.New(logs, "", log.LstdFlags))
	a.http.ReadTimeout = callReadTimeout
	go func() {
		defer close(a.done)
		if err := a.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.err = err
		}
	}()
	return a, nil
}

func (a *activator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := a.functions[functionOf(r.URL.Path)]
	// Each process has its own metrics: /metrics?function=claim returns those of claim.
	if named := a.functions[r.URL.Query().Get("function")]; named != nil && r.URL.Path == "/metrics" {
		f = named
	}
	if f == nil {
		respondError(w, http.StatusNotFound, task.CodeNotFound, "there is no such path")
		return
	}
	f.ServeHTTP(w, r)
}

// WaitReady waits until a GET of address returns 200. It returns an error if ctx ends first, or if the function of address
// does not start or ends.
func (a *activator) WaitReady(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	f := a.functions[functionOf(u.Path)]
	if _, err := f.beginCall(); err != nil {
		return fmt.Errorf("%s did not start: %w", f.name, err)
	}
	defer f.endCall()
	f.mu.Lock()
	p := f.process
	f.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%s has ended", f.name)
	}
	return p.WaitReady(ctx, address)
}

// Exited is closed once the port is no longer served.
func (a *activator) Exited() <-chan struct{} { return a.done }

// ExitCode waits for Exited. It returns 0 after Terminate, else 1.
func (a *activator) ExitCode() int {
	<-a.done
	if a.err != nil {
		return 1
	}
	return 0
}

// Output returns the error because of which the port is no longer served, or "" while it is served.
func (a *activator) Output() string {
	select {
	case <-a.done:
		if a.err != nil {
			return a.err.Error()
		}
	default:
	}
	return ""
}

// Terminate ends every process once its calls in progress have ended, and then stops serving the port. It kills a process
// that takes longer than drainTimeout, and closes connections that are open after grace. In both cases it returns an error.
func (a *activator) Terminate(grace time.Duration) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	// The processes end first, because their end also ends the long polls.
	err = a.close()
	if shutdownErr := a.http.Shutdown(ctx); shutdownErr != nil {
		err = errors.Join(err, shutdownErr, a.http.Close())
	}
	return a.ExitCode(), err
}

// close closes all functions at the same time.
func (a *activator) close() (err error) {
	errs := make(chan error)
	for _, f := range a.functions {
		go func() { errs <- f.close() }()
	}
	for range a.functions {
		err = errors.Join(err, <-errs)
	}
	return err
}
