// Package natsserver runs a JetStream server inside this process. It is not a part of package sandbox, because
// the server is large: a test binary without it takes half as long to link.
package natsserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	startTimeout  = 30 * time.Second // long, because reading a large store takes long
	host          = "127.0.0.1"
	maxViolations = 1000 // log lines that Violations returns; a client may cause any number of them
)

// Options configures a server.
type Options struct {
	Dir      string    // of the streams; "" = temporary, removed by Stop
	Port     int       // on 127.0.0.1; 0 = a free one
	MaxStore int64     // bytes that all streams may reserve; 0 = 1 TiB
	Config   string    // further configuration, such as accounts; "" = no permissions are checked
	User     string    // the user in the URL that Server.URL returns; "" = the URL has no credentials
	Password string    // of User
	Log      io.Writer // for the server's log; nil = none
}

// Server is a JetStream server inside this process.
type Server struct {
	server    *server.Server
	port      int
	dir       string
	temporary bool
	user      *url.Userinfo // nil = none
	log       serverLog
}

// Start starts a server and waits until it accepts connections. A later server with the same Dir and
// Port replaces a stopped one: it has the same streams, and the clients reconnect to it.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	n := &Server{dir: o.Dir, temporary: o.Dir == ""}
	if n.temporary {
		if n.dir, err = os.MkdirTemp("", "so-nats-"); err != nil {
			return nil, fmt.Errorf("start nats: %w", err)
		}
	}
	if err := n.start(ctx, o); err != nil {
		return nil, fmt.Errorf("start nats: %w", errors.Join(err, n.Stop()))
	}
	return n, nil
}

func (n *Server) start(ctx context.Context, o Options) error {
	port := o.Port
	if port == 0 {
		var err error
		if port, err = sandbox.FreePort(); err != nil {
			return err
		}
	}
	options := &server.Options{}
	if o.Config != "" {
		if err := options.ProcessConfigString(o.Config); err != nil {
			return err
		}
	}
	options.Host, options.Port = host, port
	options.JetStream, options.StoreDir = true, n.dir
	// 1 TiB is more than any user of this package needs. The default of nats-server depends on the disk.
	options.JetStreamMaxStore = cmp.Or(o.MaxStore, 1<<40)
	options.NoSigs, options.NoLog, options.DisableJetStreamBanner = true, true, true
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	if o.User != "" {
		n.user = url.UserPassword(o.User, o.Password)
	}
	n.log.w = cmp.Or(o.Log, io.Discard)
	s.SetLogger(&n.log, false, false)
	n.server = s
	s.Start()
	timeout := startTimeout
	if end, bounded := ctx.Deadline(); bounded {
		timeout = min(timeout, time.Until(end))
	}
	if !s.JetStreamEnabled() { // then Start has returned before the server listens
		return fmt.Errorf("JetStream cannot use %s", n.dir)
	}
	if !s.ReadyForConnections(timeout) {
		return fmt.Errorf("the server does not accept connections on %s:%d after %s; is the port taken?", host, port, timeout)
	}
	n.port = s.Addr().(*net.TCPAddr).Port
	return nil
}

// Violations returns the first 1000 log lines that contain "Violation", such as those about denied permissions.
func (n *Server) Violations() []string {
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	return slices.Clone(n.log.violations)
}

// Subscriptions counts the subscriptions to exactly this subject in all accounts. Those with wildcards are not counted, but if
// more than 10,000 subscriptions match the subject, wildcards included, the count may be too low.
func (n *Server) Subscriptions(subject string) (count int, err error) {
	all, err := n.server.Subsz(&server.SubszOptions{Subscriptions: true, Test: subject, Limit: 10_000})
	if err != nil {
		return 0, fmt.Errorf("count the subscriptions to %s: %w", subject, err)
	}
	for _, s := range all.Subs {
		if s.Subject == subject {
			count++
		}
	}
	return count, nil
}

// URL returns the URL for clients.
func (n *Server) URL() string {
	return (&url.URL{Scheme: "nats", User: n.user, Host: net.JoinHostPort(host, strconv.Itoa(n.port))}).String()
}

// Port returns the port of the server. A later server with this Options.Port has the same URL.
func (n *Server) Port() int { return n.port }

// Stop ends the server and removes a temporary directory.
func (n *Server) Stop() error {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
	}
	if !n.temporary {
		return nil
	}
	return os.RemoveAll(n.dir)
}

// New starts a server until the end of the test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	n, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Errorf("sandbox: %v", err)
		}
	})
	return n
}

// serverLog writes the log, and collects the violations. Unlike the server's own logger, it does not end this process
// when the server logs a fatal error.
type serverLog struct {
	w io.Writer

	mu         sync.Mutex
	violations []string
}

func (l *serverLog) line(format string, v []any) {
	line := fmt.Sprintf(format, v...)
	fmt.Fprintln(l.w, line)
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(line, "Violation") && len(l.violations) < maxViolations {
		l.violations = append(l.violations, line)
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.line(format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.line(format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.line(format, v) }
func (l *serverLog) Fatalf(format string, v ...any)  { l.line(format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.line(format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.line(format, v) }
