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

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/settings"
)

// drainGrace is how long the drain still handles new calls: they may be on their way when it begins.
const drainGrace = 100 * time.Millisecond

type server struct {
	env        *Env
	http       *httpserver.Server
	drainGrace time.Duration // the constant drainGrace, or longer in tests
}

func newServer(env *Env, h http.Handler) *server {
	return &server{env: env, drainGrace: drainGrace, http: httpserver.New(h, env.limiter.maxCalls()+idleConnections, env.errorLog())}
}

func (e *Env) errorLog() *log.Logger { return slog.NewLogLogger(e.Log.Handler(), slog.LevelWarn) }

// ListenAndServe limits the memory of the process and serves the functions at the configured address,
// as Serve does. It also fails if the stream of accepted messages is less durable than the settings
// require.
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
	if err := env.listenForScrapes(ctx); err != nil {
		return err
	}
	return Serve(ctx, env, l, h)
}

// assemble is Handler for a process that starts to serve: it also fails if the stream of accepted
// messages is less durable than the settings require.
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

// Serve is the server of the binary. Until ctx ends, it handles calls over l with h, a result of
// Handler. Then it drains. env must not be used for another server afterwards.
func Serve(ctx context.Context, env *Env, l net.Listener, h http.Handler) error {
	return newServer(env, h).run(ctx, l)
}

// run serves on l until ctx ends, and then drains. It closes l, so new connections are refused and
// clients try another instance. Calls over open connections still get their response, each as the
// last one of its connection. Connections without a call are closed after drainGrace. run returns when
// all calls have ended. If calls are still in progress after DrainTimeout, run cuts them off and returns
// an error.
func (s *server) run(ctx context.Context, l net.Listener) error {
	s.env.Log.Info("listening", "address", l.Addr().String(), "version", Version())
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	err := l.Close()
	// Shutdown closes idle connections at once, so without drainGrace a call that is on its way would be lost.
	if drainErr := s.env.drain(s.drainGrace, s.http.Shutdown); drainErr != nil {
		err = errors.Join(err, drainErr, s.http.Close())
	}
	if err == nil {
		s.env.Log.Info("drained")
	}
	return err
}

// drain waits until every call has its response, or returns an error after DrainTimeout. New calls are
// handled for the duration grace. Then drain calls refuseCalls.
func (e *Env) drain(grace time.Duration, refuseCalls func(context.Context) error) error {
	e.Log.Info("draining", "timeout", e.Config.DrainTimeout.String())
	limit, cancel := context.WithTimeout(context.Background(), e.Config.DrainTimeout)
	defer cancel()
	close(e.limiter.draining)
	time.Sleep(min(grace, e.Config.DrainTimeout))
	err := refuseCalls(limit)
	if err == nil {
		err = e.limiter.waitUntilIdle(limit) // for WebSockets: Shutdown does not wait for hijacked connections
	}
	if err != nil {
		return fmt.Errorf("drain: %d calls were cut off: %w", e.limiter.countInFlight(), err)
	}
	return nil
}

// listen listens at the configured address, or returns the listener that the parent process has
// passed as descriptor 3 (socket activation).
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

// listenForScrapes starts to serve metrics on their own port, until ctx ends. If SENDONCE_METRICS is not a port, it
// does nothing.
func (e *Env) listenForScrapes(ctx context.Context) error {
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
	server := httpserver.New(scrapes, metricsConnections, e.errorLog())
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.Log.Error("metrics", "cause", err.Error())
		}
	}()
	return nil
}

// metricsConnections limits the connections of the port that serves only metrics.
const metricsConnections = 32
