package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	natsStartLimit = 30 * time.Second // reading a large store takes long
	natsHost       = "127.0.0.1"

	maxViolations = 1000 // kept log lines: clients without a password can cause them
)

// NATSOptions configures a server.
type NATSOptions struct {
	Dir        string // of the streams; "" = temporary, removed by Stop
	Port       int    // on 127.0.0.1; 0 = a free one
	SyncAlways bool   // sync each message to disk before it is acknowledged
	MaxStore   int64  // bytes that all streams may reserve; 0 = 1 TiB
	Config     string // further configuration, such as accounts; "" = no permissions are checked
	User       string // whose credentials URL has; "" = none
	Password   string
	Log        io.Writer // for the server's log; nil = none
}

// NATS is a JetStream server inside this process.
type NATS struct {
	server    *server.Server
	port      int
	dir       string
	temporary bool
	user      *url.Userinfo // nil = none
	log       *natsLog
}

// StartNATS starts a server and returns once it accepts connections. Stop, then
// StartNATS with the same Dir and Port, is a restart that clients survive.
func StartNATS(ctx context.Context, o NATSOptions) (_ *NATS, err error) {
	n := &NATS{dir: o.Dir, temporary: o.Dir == ""}
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

func (n *NATS) start(ctx context.Context, o NATSOptions) error {
	port := o.Port
	if port == 0 {
		var err error
		if port, err = FreePort(); err != nil {
			return err
		}
	}
	options, err := natsOptions(o.Config)
	if err != nil {
		return err
	}
	options.Host, options.Port = natsHost, port
	options.JetStream, options.StoreDir, options.SyncAlways = true, n.dir, o.SyncAlways
	// More than any test needs; the default depends on the disk.
	options.JetStreamMaxStore = cmp.Or(o.MaxStore, 1<<40)
	options.NoSigs, options.NoLog, options.DisableJetStreamBanner = true, true, true
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	if o.User != "" {
		n.user = url.UserPassword(o.User, o.Password)
	}
	n.log = &natsLog{w: o.Log}
	s.SetLogger(n.log, false, false)
	n.server = s
	s.Start()
	limit := natsStartLimit
	if end, bounded := ctx.Deadline(); bounded {
		limit = min(limit, time.Until(end))
	}
	if !s.ReadyForConnections(limit) {
		return fmt.Errorf("no connection to %s:%d after %s; is the port taken?", natsHost, port, limit)
	}
	if !s.JetStreamEnabled() {
		return fmt.Errorf("JetStream cannot use %s", n.dir)
	}
	n.port = s.Addr().(*net.TCPAddr).Port
	return nil
}

// natsOptions reads a configuration; the server reads it only from a file.
func natsOptions(config string) (*server.Options, error) {
	file, err := os.CreateTemp("", "so-nats-*.conf") // only this user may read it
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(config)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	options := &server.Options{}
	if config != "" {
		err = options.ProcessConfigFile(file.Name())
	}
	return options, err
}

// Violations returns the first 1000 log lines about denied permissions.
func (n *NATS) Violations() []string { return n.log.violationLines() }

// Subscriptions counts the subscriptions to exactly this subject in all accounts, up to 10,000.
func (n *NATS) Subscriptions(subject string) (count int, err error) {
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

// URL is where clients connect.
func (n *NATS) URL() string {
	return (&url.URL{Scheme: "nats", User: n.user, Host: net.JoinHostPort(natsHost, strconv.Itoa(n.port))}).String()
}

// Port can be passed to StartNATS to start another server at the same URL.
func (n *NATS) Port() int { return n.port }

// Stop ends the server and removes a temporary directory.
func (n *NATS) Stop() error {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
	}
	if !n.temporary {
		return nil
	}
	return os.RemoveAll(n.dir)
}

// NewNATS starts a server until the end of the test.
func NewNATS(t testing.TB) *NATS {
	t.Helper()
	return NATSIn(t, NATSOptions{Dir: filepath.Join(t.TempDir(), "nats")})
}

// NATSIn is NewNATS with options, for tests that stop and restart their server.
func NATSIn(t testing.TB, o NATSOptions) *NATS {
	t.Helper()
	n, err := StartNATS(t.Context(), o)
	must(t, err)
	stopAtEnd(t, n.Stop)
	return n
}

// natsLog writes the server's log. The server's own logger would end this process
// at a fatal line.
type natsLog struct {
	w io.Writer // nil = none

	mu         sync.Mutex
	violations []string
}

func (l *natsLog) line(level, format string, v []any) {
	line := fmt.Sprintf("nats: "+level+" "+format+"\n", v...)
	l.mu.Lock()
	if strings.Contains(line, "Violation") && len(l.violations) < maxViolations {
		l.violations = append(l.violations, line)
	}
	l.mu.Unlock()
	if l.w != nil {
		fmt.Fprint(l.w, line)
	}
}

func (l *natsLog) violationLines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.violations)
}

func (l *natsLog) Noticef(format string, v ...any) { l.line("info", format, v) }
func (l *natsLog) Warnf(format string, v ...any)   { l.line("warn", format, v) }
func (l *natsLog) Errorf(format string, v ...any)  { l.line("error", format, v) }
func (l *natsLog) Fatalf(format string, v ...any)  { l.line("fatal", format, v) }
func (l *natsLog) Debugf(format string, v ...any)  { l.line("debug", format, v) }
func (l *natsLog) Tracef(format string, v ...any)  { l.line("trace", format, v) }
