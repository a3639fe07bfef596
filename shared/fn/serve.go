package fn

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/settings"
)

type server struct {
	env        *Env
	http       *BoundedServer
	drainGrace time.Duration // how long calls may still come over idle connections of a server that ends
}

func newServer(env *Env, h http.Handler) *server {
	return &server{env: env, drainGrace: drainGrace, http: NewBoundedServer(h, env.limiter.maxCalls()+idleConnections, env.errorLog())}
}

func (e *Env) errorLog() *log.Logger { return slog.NewLogLogger(e.Log.Handler(), slog.LevelWarn) }

// BoundedServer is an http.Server for clients that are not trusted: it speaks HTTP/1 alone, and
// limits the number of connections, their headers and their times.
type BoundedServer struct {
	http.Server
	headers headerMemory
	open    *connectionLimiter
}

// NewBoundedServer serves h. When there are more than the given number of connections,
// one that KeepConnectionOpen does not keep is closed. Problems of connections go to errors.
func NewBoundedServer(h http.Handler, connections int, errors *log.Logger) *BoundedServer {
	s := &BoundedServer{headers: headerMemory{max: maxHeaderMemory}, open: newConnectionLimiter(connections), Server: http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errors,
		Protocols:         new(http.Protocols),
	}}
	s.ConnContext = s.open.add
	s.ConnState = func(conn net.Conn, state http.ConnState) { conn.(*headerConn).state(state) }
	// The gateways of deploy/ use HTTP/1.1, and net/http does not limit the rate of control
	// frames of HTTP/2: anybody could send them without end.
	s.Protocols.SetHTTP1(true)
	return s
}

// Serve is http.Server's.
func (s *BoundedServer) Serve(l net.Listener) error {
	return s.Server.Serve(headerListener{l, &s.headers, s.open})
}

// ListenAndServe handles calls at the configured address until ctx ends, as Serve does. It
// also fails when the settings promise more than a stream gives.
func ListenAndServe(ctx context.Context, env *Env, functions []Function) error {
	limitMemory(&env.Config)
	h, err := assemble(ctx, env, functions)
	if err != nil {
		return err
	}
	l, err := listen(ctx, &env.Config)
	if err != nil {
		return err
	}
	if err := env.serveMetrics(ctx); err != nil {
		return err
	}
	return Serve(ctx, env, l, h)
}

// assemble is Handler for a process that starts to serve: it also fails when the settings
// promise more than a stream gives.
func assemble(ctx context.Context, env *Env, functions []Function) (http.Handler, error) {
	h, err := Handler(env, functions...)
	if err != nil {
		return nil, err
	}
	if err := verifyDurability(ctx, env); err != nil {
		return nil, err
	}
	return h, nil
}

// Serve handles calls over l with h, which Handler made, until ctx ends. It is
// the server of the binary: bounded in every direction, HTTP/1 alone, and drained at
// its end. Then env takes no further call.
func Serve(ctx context.Context, env *Env, l net.Listener, h http.Handler) error {
	return newServer(env, h).run(ctx, l)
}

// run serves on l until ctx ends, then drains: l is closed, so a new connection is
// refused and its caller goes to the next instance. Calls over connections
// that are open get their response all the same, each as the last of its connection;
// where none comes, the connection is closed after a moment. It returns when all
// have theirs, or with an error when DrainTimeout cut some off.
func (s *server) run(ctx context.Context, l net.Listener) error {
	s.env.Log.Info("listening", "address", l.Addr().String(), "version", Version())
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.env.Log.Info("draining", "timeout", s.env.Config.DrainTimeout.String())
	limit, cancel := context.WithTimeout(context.Background(), s.env.Config.DrainTimeout)
	defer cancel()
	close(s.env.limiter.draining)
	err := l.Close()
	// Shutdown closes what is idle at once: a call that is on its way would be lost.
	time.Sleep(min(s.drainGrace, s.env.Config.DrainTimeout))
	cut := s.http.Shutdown(limit)
	if cut == nil {
		cut = s.env.limiter.waitUntilIdle(limit) // for sockets, of which http.Server knows nothing any more
	}
	if cut != nil {
		left := s.env.limiter.countInFlight()
		err = errors.Join(err, fmt.Errorf("drain: %d calls were cut off: %w", left, cut), s.http.Close())
	}
	if err == nil {
		s.env.Log.Info("drained")
	}
	return err
}

// listen opens the configured address, or takes the one listener that a
// socket-activating parent has left open as descriptor 3.
func listen(ctx context.Context, cfg *settings.Config) (net.Listener, error) {
	passed, pid := os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_PID")
	if passed == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address())
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		return l, nil
	}
	if passed != "1" {
		return nil, fmt.Errorf("listen: LISTEN_FDS is %q but must be 1: one passed listener", passed)
	}
	f := os.NewFile(3, "passed listener")
	defer f.Close() // FileListener keeps a copy of its own
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listen on the passed descriptor 3: %w", err)
	}
	return l, nil
}

// serveMetrics serves /metrics on its own port, where it has one, until ctx ends.
func (e *Env) serveMetrics(ctx context.Context) error {
	port := e.Config.MetricsPort()
	if port == "" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(e.Config.Host, port))
	if err != nil {
		return fmt.Errorf("SENDONCE_METRICS: %w", err)
	}
	e.Log.Info("metrics", "address", l.Addr().String())
	scrapes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch endpoint := e.metricsAt(r.URL.Path); {
		case endpoint == nil:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			serveScrape(w, r, endpoint)
		}
	})
	server := NewBoundedServer(scrapes, metricsConnections, e.errorLog())
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.Log.Error("metrics", "cause", err.Error())
		}
	}()
	return nil
}

// metricsConnections is how many connections the port of /metrics alone may have.
const metricsConnections = 32
