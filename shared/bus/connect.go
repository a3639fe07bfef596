package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/task"
)

const (
	dialTimeout  = 2 * time.Second
	redialWait   = 250 * time.Millisecond
	redialJitter = 250 * time.Millisecond
	writeTimeout = 3 * time.Second // bounds how long a server that does not respond blocks callers
	pingInterval = 10 * time.Second
)

// start begins to connect, once.
func (b *Bus) start() {
	b.dial.Do(func() {
		if !b.spawn(b.connect) {
			b.markAttempted()
		}
	})
}

// connect creates the client connection, which then reconnects by itself. If the creation fails, for example
// because a credentials file is unreadable, connect tries again.
func (b *Bus) connect() {
	defer b.markAttempted()
	for {
		nc, err := nats.Connect(b.cfg.URL, b.options()...)
		if err == nil {
			b.setConn(nc)
			if nc.IsConnected() {
				<-b.attempted // closed by the connect handler, in another goroutine, after b.current is set
			}
			return
		}
		b.markAttempted()
		b.log.Error("cannot connect to NATS", "error", err)
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

// setConn stores the client connection. The connect handler calls it too, since it may run before nats.Connect returns.
func (b *Bus) setConn(nc *nats.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nc = nc
}

func (b *Bus) options() []nats.Option {
	connected := func(nc *nats.Conn) {
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
		nats.ConnectHandler(connected),
		nats.ReconnectHandler(connected),
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

// onAsyncError handles errors that do not belong to a call: those that the server reports outside of replies, and those
// of subscriptions.
func (b *Bus) onAsyncError(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		if unlogged, logNow := b.asyncErrors.Next(err.Error()); logNow {
			b.log.Warn("an error on the connection to NATS", "error", err, "unlogged", unlogged)
		}
		return
	}
	if unlogged, logNow := b.denied.lines.Next(); logNow {
		b.log.Warn("NATS denied a subject", "error", task.MaskNumbers(err.Error()), "unlogged", unlogged) // the error has the subject, which may be a phone number
	}
	b.denied.add(err)
}

func (b *Bus) onConnect(nc *nats.Conn) {
	js, err := jetstream.New(nc)
	if err != nil {
		b.log.Error("cannot connect to NATS", "error", err)
		return
	}
	version := nc.ConnectedServerVersion()
	conn := &Connection{
		js: js, log: b.log, acceptStream: b.cfg.acceptStream(), hasSchedules: schedules.isReachedBy(version),
		hasPriorityGroups: priorityGroups.isReachedBy(version), isStrict: strictRequests.isReachedBy(version),
	}
	conn.ctx, conn.end = context.WithCancel(b.closing)
	b.denied.reset() // NATS reconnects a user when its permissions change
	b.install(conn)
	b.log.Info("connected to NATS", "server", nc.ConnectedServerName(), "version", version)
	b.resendUnsent()
}

// install makes conn the current connection.
func (b *Bus) install(conn *Connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil {
		b.current.end()
	}
	b.current = conn
	close(b.connected)
	b.connected = make(chan struct{})
	if !conn.hasSchedules && !b.warned {
		b.warned = true
		b.log.Warn(fmt.Sprintf("this NATS server is older than %s and has no message schedules: due work waits for the safety tick", schedules))
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
	clear(b.scheduled) // the server may have lost the schedules
	if !b.closed {
		b.log.Warn("lost the connection to NATS", "error", err)
	}
}

// ErrNotConnected means that there is no connection to NATS now.
var ErrNotConnected = errors.New("not connected to NATS")

// connection returns the current connection. It waits for the first attempt to connect, so that a
// process that has just started does not report NATS as unavailable. It does not wait for later attempts.
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

// AwaitConnection waits for a connection, until ctx ends or Close begins.
func (b *Bus) AwaitConnection(ctx context.Context) (*Connection, error) {
	b.start()
	for {
		b.mu.Lock()
		current, connected := b.current, b.connected
		b.mu.Unlock()
		if current != nil {
			return current, nil
		}
		select {
		case <-connected:
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
