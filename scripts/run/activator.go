package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

// activatorConnections is how many there may be beside those of calls in progress.
const activatorConnections = 2048

// routes maps prefixes of paths to functions; the longest prefix decides. {$} ends a whole path.
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

// functionOf names the function that serves path; "" for what is no path, as in CONNECT example.com:443.
func functionOf(path string) string {
	best := ""
	for prefix := range routes {
		whole := strings.TrimSuffix(prefix, "{$}")
		fits := path == whole || strings.HasSuffix(prefix, "/") && strings.HasPrefix(path, prefix)
		if fits && len(prefix) > len(best) {
			best = prefix
		}
	}
	return routes[best]
}

// activator is a server that starts the process of a function when it is called.
type activator struct {
	functions map[string]*function
	http      *fn.BoundedServer
	done      chan struct{} // closed once the port is no longer served
	err       error         // why it ended by itself; read it after done
}

// startActivator serves the reserved port.
func startActivator(s settings, binary string, env []string, nats broker, at *reservedPort, logs, out io.Writer) (*activator, error) {
	a := &activator{functions: map[string]*function{}, done: make(chan struct{})}
	for _, name := range routes {
		if a.functions[name] != nil {
			continue
		}
		f := &function{name: name, binary: binary, idleLimit: s.procsIdle, log: logs, out: out}
		f.env = append(withOnlySecretsOf(nats.as(name, env), name), "FUNCTION_TARGET="+name)
		if err := f.listen(); err != nil {
			return nil, errors.Join(fmt.Errorf("listen for %s: %w", name, err), a.close())
		}
		a.functions[name] = f
	}
	listener, err := net.FileListener(at.socket) // a copy, as the port stays open
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.http = fn.NewBoundedServer(a, activatorConnections, log.New(logs, "", log.LstdFlags))
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

// WaitReady waits until a GET of url gets its response with 200. It fails when ctx
// ends or the function behind url does not start.
func (a *activator) WaitReady(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	f := a.functions[functionOf(req.URL.Path)]
	if _, err := f.beginCall(); err != nil {
		return fmt.Errorf("%s did not start: %w", f.name, err)
	}
	defer f.endCall()
	for {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("GET %s returned %s", url, res.Status)
		}
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s is not ready: %w", f.name, err)
		}
	}
}

// Exited is closed once the port is no longer served.
func (a *activator) Exited() <-chan struct{} { return a.done }

// ExitCode waits for the end: 0 after Terminate, else 1.
func (a *activator) ExitCode() int {
	<-a.done
	if a.err != nil {
		return 1
	}
	return 0
}

// Output is why the port is no longer served.
func (a *activator) Output() string {
	select {
	case <-a.done:
		return fmt.Sprint(a.err)
	default:
		return ""
	}
}

// Terminate ends every function, each after its calls in progress, and then closes
// the port. Calls that take longer than grace are cut off, and that is an error.
func (a *activator) Terminate(grace time.Duration) (code int, err error) {
	limit, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	// The functions first: their end also ends the long polls.
	err = a.close()
	if cut := a.http.Shutdown(limit); cut != nil {
		err = errors.Join(err, cut, a.http.Close())
	}
	return a.ExitCode(), err
}

func (a *activator) close() error {
	var all sync.WaitGroup
	failed := make(chan error, len(a.functions))
	for _, f := range a.functions {
		all.Go(func() { failed <- f.close() })
	}
	all.Wait()
	close(failed)
	var err error
	for one := range failed {
		err = errors.Join(err, one)
	}
	return err
}
