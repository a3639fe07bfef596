package bus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Connection is the connection to NATS from one connect to the next disconnect. It is exported for package trigger.
type Connection struct {
	ctx               context.Context // cancelled when the connection is lost
	end               context.CancelFunc
	js                jetstream.JetStream
	log               *slog.Logger
	acceptStream      string // the only stream that may store messages of Accept: Accept fails if another stream has the subject
	hasSchedules      bool   // the server supports message schedules
	hasPriorityGroups bool   // the server supports priority groups, by which one trigger at a time receives the messages of a consumer
	isStrict          bool   // the server refuses requests with unknown fields, unless its settings say otherwise
}

// JetStream returns the JetStream API over this connection.
func (conn *Connection) JetStream() jetstream.JetStream { return conn.js }

// nats returns the client connection.
func (conn *Connection) nats() *nats.Conn { return conn.js.Conn() }

// Lost reports whether the connection has ended.
func (conn *Connection) Lost() bool { return conn.ctx.Err() != nil }

// CheckPriorityGroups returns an error if the server is too old for the routes of the trigger that post batches in order.
func (conn *Connection) CheckPriorityGroups() error {
	if conn.hasPriorityGroups {
		return nil
	}
	return fmt.Errorf("this NATS server cannot keep the order of batches: use %s or later", priorityGroups)
}

// Strict reports whether messages may be accepted before they are saved; see ErrOldServer.
func (conn *Connection) Strict() bool { return conn.isStrict }

// UntilLost returns a child of ctx that is also cancelled when the connection is lost, since no reply can
// arrive after that. Call unbind when the child is no longer needed.
func (conn *Connection) UntilLost(ctx context.Context) (child context.Context, unbind context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(conn.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// WithTimeout is UntilLost with a timeout.
func (conn *Connection) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, expire := context.WithTimeout(ctx, d)
	ctx, unbind := conn.UntilLost(ctx)
	return ctx, func() { unbind(); expire() }
}
