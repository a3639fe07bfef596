package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	dialTimeout  = 2 * time.Second
	redialWait   = 250 * time.Millisecond
	redialJitter = 250 * time.Millisecond
	writeTimeout = 3 * time.Second // bounds how long a stopped server blocks callers
	pingInterval = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// Config is the address of NATS and the sizes of its streams, as settings. A size or age of 0 means
// the default.
type Config struct {
	URL             string        `envconfig:"NATS_URL" secret:"true" desc:"NATS, as nats://host:4222; several are separated by commas; empty runs without events and wake-ups"`
	User            string        `envconfig:"NATS_USER" desc:"user name for NATS"`
	Password        string        `envconfig:"NATS_PASSWORD" secret:"true" desc:"password for NATS"`
	CredentialsFile string        `envconfig:"NATS_CREDENTIALS" desc:"path of a NATS credentials file; used instead of user and password"`
	CAFile          string        `envconfig:"NATS_CA" desc:"path of the certificates, in PEM, of the authority that signed those of NATS; with it, or with tls:// in NATS_URL, the connection is encrypted; empty = the authorities of the system"`
	InboxPrefix     string        `envconfig:"NATS_INBOX_PREFIX" desc:"prefix of the subjects at which this process receives replies; empty = _INBOX.<user>, and _INBOX without a user"`
	Name            string        `envconfig:"NATS_CLIENT_NAME" default:"sendonce" desc:"name of this process in the connection lists of NATS"`
	Replicas        int           `envconfig:"SENDONCE_NATS_REPLICAS" default:"1" desc:"copies of each stream that NATS keeps: 1, 3 or 5"`
	EventsMB        int           `envconfig:"SENDONCE_STREAM_EVENTS_MB" default:"128" desc:"size limit of the stream EVENTS in MiB, 1 to 1048576; NATS reserves it. While it is full, events of tasks wait in Postgres"`
	MessagesMB      int           `envconfig:"SENDONCE_STREAM_MESSAGES_MB" default:"256" desc:"size limit of the stream MESSAGES, as SENDONCE_STREAM_EVENTS_MB; while it is full, messages to subjects wait in Postgres"`
	UsersMB         int           `envconfig:"SENDONCE_STREAM_USERS_MB" default:"128" desc:"size limit of the stream USERS, as SENDONCE_STREAM_EVENTS_MB; while it is full, messages to users wait in Postgres"`
	AcceptedMB      int           `envconfig:"SENDONCE_STREAM_ACCEPTED_MB" default:"256" desc:"size limit of the stream of accepted messages, as SENDONCE_STREAM_EVENTS_MB; while it is full, TWO_PHASE_FAIL_OPEN decides"`
	DeadLettersMB   int           `envconfig:"SENDONCE_STREAM_DEADLETTERS_MB" default:"32" desc:"size limit of the stream DEADLETTERS, as SENDONCE_STREAM_EVENTS_MB; while it is full, refused events go to the table dead_letters"`
	MessagesMaxAge  time.Duration `envconfig:"SENDONCE_STREAM_MESSAGES_MAX_AGE" default:"168h" desc:"how long the stream MESSAGES keeps a message at most, 1h to 8760h"`
	UsersMaxAge     time.Duration `envconfig:"SENDONCE_STREAM_USERS_MAX_AGE" default:"720h" desc:"how long the stream USERS keeps a message at most, 1h to 8760h"`
	InboxMessages   int           `envconfig:"SENDONCE_INBOX_MESSAGES" default:"10000" desc:"messages that the stream USERS keeps for one user, 100 to 1000000; a newer one replaces the oldest, which stays in Postgres; one sender may send a quarter of it to one user within 15 minutes"`
	AcceptStream    string        `ignored:"true"` // the name of the stream of accepted messages; "" = ACCEPTED
	AcceptShards    int           `ignored:"true"` // parts of that stream that are saved in parallel, up to 64; 0 = 1

	TrimNotice time.Duration `ignored:"true"` // how long before removal TrimUsers reports what it will remove; 0 = 3 s

	Now func() time.Time `ignored:"true"` // the clock for the age of messages; nil = time.Now
}

// ago returns the time that is age before now.
func (c *Config) ago(age time.Duration) time.Time {
	if c.Now == nil {
		return time.Now().Add(-age)
	}
	return c.Now().Add(-age)
}

// SettingError reports a setting with a wrong value, and what is accepted.
type SettingError struct{ Name, Message string }

// Error returns one sentence.
func (e *SettingError) Error() string { return e.Name + " " + e.Message }

func (c *Config) check() error {
	wrong := func(name, format string, values ...any) error {
		return &SettingError{name, fmt.Sprintf(format, values...)}
	}
	for name, mb := range map[string]int{
		"EVENTS": c.EventsMB, "MESSAGES": c.MessagesMB, "USERS": c.UsersMB, "ACCEPTED": c.AcceptedMB, "DEADLETTERS": c.DeadLettersMB,
	} {
		if mb < 0 || mb > 1<<20 {
			return wrong("SENDONCE_STREAM_"+name+"_MB", "is %d but must be between 1 and 1048576", mb)
		}
	}
	for name, age := range map[string]time.Duration{"MESSAGES": c.MessagesMaxAge, "USERS": c.UsersMaxAge} {
		if age != 0 && (age < time.Hour || age > 365*day) {
			return wrong("SENDONCE_STREAM_"+name+"_MAX_AGE", "is %v but must be between 1h and 8760h", age)
		}
	}
	switch {
	case c.InboxMessages != 0 && (c.InboxMessages < 100 || c.InboxMessages > 1_000_000):
		return wrong("SENDONCE_INBOX_MESSAGES", "is %d but must be between 100 and 1000000", c.InboxMessages)
	case c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5:
		return wrong("SENDONCE_NATS_REPLICAS", "is %d but must be 1, 3 or 5", c.Replicas)
	case c.CredentialsFile != "" && c.User != "":
		return wrong("NATS_USER", "and NATS_CREDENTIALS exclude each other")
	case !publishable(c.acceptStream()) || strings.ContainsAny(c.acceptStream(), "./\\"):
		return wrong("TWO_PHASE_STREAM", "is %q but must be the name of a stream: no blanks, dots, slashes or wildcards", c.AcceptStream)
	case c.InboxPrefix != "" && !(publishable(c.InboxPrefix) && strings.HasPrefix(c.InboxPrefix, replyRoot)):
		return wrong("NATS_INBOX_PREFIX", "is %q but must be a subject that begins with _, without blanks, wildcards or empty tokens, as _INBOX.me", c.InboxPrefix)
	}
	for name, file := range map[string]string{"NATS_CREDENTIALS": c.CredentialsFile, "NATS_CA": c.CAFile} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return wrong(name, "cannot be read: %v", err)
		}
	}
	return nil
}

// replyPrefix returns the prefix of the subjects on which this process receives replies. Each user has
// its own, so that no user can read the replies of another.
func (c *Config) replyPrefix() string {
	user := c.User
	first, _, _ := strings.Cut(c.URL, ",")
	if u, err := url.Parse(strings.TrimSpace(first)); err == nil && u.User != nil {
		user = u.User.Username()
	}
	switch {
	case c.InboxPrefix != "":
		return c.InboxPrefix
	case user != "":
		return ReplyPrefix(user)
	}
	return defaultReplyPrefix
}

func (c *Config) acceptStream() string { return cmp.Or(c.AcceptStream, StreamAccepted) }

func (c *Config) acceptShards() int { return cmp.Or(c.AcceptShards, 1) }

// Bus is one connection to NATS, shared by the whole process. All methods are safe for concurrent use.
// A nil *Bus means that NATS is not configured: its methods do nothing, and Publish returns
// ErrUnavailable.
type Bus struct {
	cfg     Config
	log     *slog.Logger
	dropped atomic.Uint64
	denied  denials

	closing      context.Context // cancelled when Close begins
	beginClosing context.CancelFunc
	dial         sync.Once
	attempted    chan struct{} // closed by markAttempted
	// markAttempted is called after each attempt to connect.
	markAttempted func()

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup // Close waits for it; Add and Go only under mu
	nc         *nats.Conn     // the newest; replaced when the client library closes it permanently
	current    *Connection    // nil while disconnected
	connected  chan struct{}  // closed and replaced by each new connection
	debouncers map[string]*debouncer
	scheduled  map[string]time.Time // by schedule name: until when it is assumed to exist
	unsent     map[wakeUp]bool      // sent again after the next connect
	oldServer  bool                 // logged that the server has no message schedules

	inboxesMu sync.Mutex
	inboxes   map[inboxOn]*inboxSubscription // those with followers
}

// Connection is one period between connect and disconnect, for package trigger.
type Connection struct {
	ctx               context.Context // cancelled when the connection is lost
	end               context.CancelFunc
	js                jetstream.JetStream
	hasSchedules      bool   // the server supports message schedules at a given time
	acceptStream      string // the stream that Accept publishes to; another stream with its subjects is not accepted
	hasPriorityGroups bool   // the server supports priority groups
	isStrict          bool   // the server refuses requests with unknown fields, unless its settings say otherwise
}

// Open makes a Bus without network access. The first use connects; lost connections are made again
// until Close. Without a URL it returns a nil *Bus.
func Open(cfg Config, log *slog.Logger) (*Bus, error) {
	if cfg.URL == "" {
		return nil, nil
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open bus: %w", err)
	}
	b := &Bus{
		cfg: cfg, log: log,
		attempted: make(chan struct{}), connected: make(chan struct{}),
		debouncers: map[string]*debouncer{}, scheduled: map[string]time.Time{}, unsent: map[wakeUp]bool{},
		inboxes: map[inboxOn]*inboxSubscription{},
	}
	b.markAttempted = sync.OnceFunc(func() { close(b.attempted) })
	b.closing, b.beginClosing = context.WithCancel(context.Background())
	b.denied.reset()
	return b, nil
}

// Dropped counts the wake-ups and schedules since Open that could not be sent at once. They are sent
// after the next connect, unless Close comes first.
func (b *Bus) Dropped() uint64 {
	if b == nil {
		return 0
	}
	return b.dropped.Load()
}

// Close sends pending wake-ups, ends the subscriptions and closes the connection. It takes a few
// seconds at most; calls after it do nothing.
func (b *Bus) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.beginClosing()
	b.background.Wait() // each of these is bounded

	b.mu.Lock()
	nc := b.nc
	b.mu.Unlock()
	if nc == nil {
		return
	}
	closed := nc.StatusChanged(nats.CLOSED)
	if nc.Drain() == nil {
		select {
		case <-closed:
		case <-time.After(closeTimeout):
		}
	}
	nc.Close()
}

// spawn runs f in a goroutine that Close waits for. After Close it returns false and does not run f.
func (b *Bus) spawn(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.background.Go(f)
	return true
}

// start begins connecting, once.
func (b *Bus) start() {
	b.dial.Do(func() {
		if !b.spawn(b.connect) {
			b.markAttempted()
		}
	})
}

// connect creates the client connection, which then reconnects by itself. It retries when creation
// fails, for example on an unreadable credentials file, which may be corrected meanwhile.
func (b *Bus) connect() {
	defer b.markAttempted()
	for {
		nc, err := nats.Connect(b.cfg.URL, b.options()...)
		if err == nil {
			b.setConn(nc)
			if nc.IsConnected() {
				<-b.attempted // closed by the connect handler, which runs in the order of events
			}
			return
		}
		b.markAttempted()
		b.log.Error("connect to NATS", "error", err)
		if !b.pause(10 * redialWait) {
			return
		}
	}
}

// onClosed replaces a connection that the client library closed permanently, as it does after some
// server errors.
func (b *Bus) onClosed(closed *nats.Conn) {
	err := closed.LastError()
	b.onDisconnect(err)
	b.spawn(func() {
		b.log.Error("NATS closed the connection permanently; connecting again", "error", err)
		if b.pause(redialWait + rand.N(redialJitter)) {
			b.connect()
		}
	})
}

// pause waits for d. It returns false if Close began first.
func (b *Bus) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-b.closing.Done():
		return false
	}
}

// setConn stores the client connection. Its handlers may run before nats.Connect returns.
func (b *Bus) setConn(nc *nats.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nc = nc
}

func (b *Bus) options() []nats.Option {
	raise := func(nc *nats.Conn) {
		b.setConn(nc)
		b.onConnect(nc)
		b.markAttempted()
	}
	options := []nats.Option{
		nats.Name(b.cfg.Name),
		nats.CustomInboxPrefix(b.cfg.replyPrefix()),
		nats.Timeout(dialTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(redialWait),
		nats.ReconnectJitter(redialJitter, redialJitter),
		nats.ReconnectBufSize(-1), // fail at once instead of sending later
		nats.FlusherTimeout(writeTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
		nats.ConnectHandler(raise),
		nats.ReconnectHandler(raise),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { b.onDisconnect(err) }),
		nats.ClosedHandler(b.onClosed),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { b.onAsyncError(err) }),
	}
	switch {
	case b.cfg.CredentialsFile != "":
		options = append(options, nats.UserCredentials(b.cfg.CredentialsFile))
	case b.cfg.User != "":
		options = append(options, nats.UserInfo(b.cfg.User, b.cfg.Password))
	}
	if b.cfg.CAFile != "" {
		options = append(options, nats.RootCAs(b.cfg.CAFile))
	}
	return options
}

func (b *Bus) onConnect(nc *nats.Conn) {
	js, err := jetstream.New(nc)
	if err != nil {
		b.log.Error("connect to NATS", "error", err)
		return
	}
	version := nc.ConnectedServerVersion()
	l := &Connection{js: js, hasSchedules: schedules.supportedBy(version), hasPriorityGroups: priorityGroups.supportedBy(version), isStrict: strictRequests.supportedBy(version), acceptStream: b.cfg.acceptStream()}
	l.ctx, l.end = context.WithCancel(b.closing)
	b.denied.reset() // NATS reconnects a user when its permissions change
	b.install(l)
	b.log.Info("connected to NATS", "server", nc.ConnectedServerName(), "version", version)
	b.resendUnsent()
}

func (b *Bus) install(l *Connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil {
		b.current.end()
	}
	b.current = l
	close(b.connected)
	b.connected = make(chan struct{})
	if !l.hasSchedules && !b.oldServer {
		b.oldServer = true
		b.log.Warn(fmt.Sprintf("this NATS has no message schedules (%s or later has): what falls due waits for the safety tick", schedules))
	}
}

func (b *Bus) onDisconnect(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == nil {
		return
	}
	b.current.end()
	b.current = nil
	clear(b.scheduled) // the server may have lost its data
	if !b.closed {
		b.log.Warn("lost the connection to NATS", "error", err)
	}
}

// ErrNotConnected: there is no connection to NATS now.
var ErrNotConnected = errors.New("not connected to NATS")

// connection returns the current connection. It waits only for the first attempt to connect, so that a
// process which has just started does not report NATS as unavailable.
func (b *Bus) connection(ctx context.Context) (*Connection, error) {
	if b == nil {
		return nil, errors.New("NATS_URL is not set")
	}
	b.start()
	select {
	case <-b.attempted:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, ctx.Err())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == nil || b.closed {
		return nil, ErrNotConnected
	}
	return b.current, nil
}

// AwaitConnection waits for a connection.
func (b *Bus) AwaitConnection(ctx context.Context) (*Connection, error) {
	b.start()
	for {
		b.mu.Lock()
		up, raised := b.current, b.connected
		b.mu.Unlock()
		if up != nil {
			return up, nil
		}
		select {
		case <-raised:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-b.closing.Done():
			return nil, ErrNotConnected
		}
	}
}

// Connected reports whether there is a connection to NATS.
func (b *Bus) Connected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current != nil
}

// JetStream returns the API of NATS over this connection.
func (l *Connection) JetStream() jetstream.JetStream { return l.js }

// Lost reports whether the connection has ended.
func (l *Connection) Lost() bool { return l.ctx.Err() != nil }

// CheckPriorityGroups returns an error if the server is too old for ordered batches.
func (l *Connection) CheckPriorityGroups() error {
	if l.hasPriorityGroups {
		return nil
	}
	return fmt.Errorf("this NATS cannot keep the order of batches: %s or later can", priorityGroups)
}

// Strict reports whether messages may be accepted before they are saved; see ErrOldServer.
func (l *Connection) Strict() bool { return l.isStrict }

// nats returns the client connection.
func (l *Connection) nats() *nats.Conn { return l.js.Conn() }

// UntilLost returns a context that is cancelled when the connection is lost, since no reply can arrive
// after that.
func (l *Connection) UntilLost(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// atLeast reports whether a server version is major.minor or later.
func atLeast(version string, major, minor int) bool {
	var hasMajor, hasMinor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &hasMajor, &hasMinor); err != nil {
		return false
	}
	return hasMajor > major || hasMajor == major && hasMinor >= minor
}
