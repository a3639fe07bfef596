package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connectionWaitLimit is how long work of a caller waits for a slot of connectionLimiter before it fails as overloaded.
const connectionWaitLimit = 10 * time.Second

// fairLimiter shares slots among callers. Waiting callers get the free slots in turn (see callerQueues).
type fairLimiter struct {
	slots int
	share int // maximum slots of one caller

	mu       sync.Mutex
	inUse    int
	byCaller map[int64]int // slots in use by each caller; no entry for 0 slots
	waiting  callerQueues[limiterWait]
}

// limiterWait is a call that waits for a slot.
type limiterWait struct {
	caller  int64
	granted chan struct{}
}

func newFairLimiter(slots, share int) *fairLimiter {
	return &fairLimiter{slots: slots, share: share, byCaller: map[int64]int{}}
}

// acquire waits for a slot until ctx ends. If it returns nil, release must be called later.
func (l *fairLimiter) acquire(ctx context.Context, caller int64) error {
	l.mu.Lock()
	if l.inUse < l.slots && l.belowShare(caller) {
		l.grant(caller)
		l.mu.Unlock()
		return nil
	}
	wait := limiterWait{caller, make(chan struct{})}
	l.waiting.push(caller, wait)
	l.mu.Unlock()
	select {
	case <-wait.granted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting.remove(caller, func(other limiterWait) bool { return other == wait }) {
		return ctx.Err()
	}
	return nil // the slot was granted before waiting.remove
}

// release frees a slot and grants the free slots to the next waiting callers that are below their share.
func (l *fairLimiter) release(caller int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse--
	if l.byCaller[caller]--; l.byCaller[caller] == 0 {
		delete(l.byCaller, caller)
	}
	for l.inUse < l.slots {
		next := l.waiting.take(1, l.belowShare)
		if len(next) == 0 {
			return
		}
		l.grant(next[0].caller)
		close(next[0].granted)
	}
}

func (l *fairLimiter) belowShare(caller int64) bool { return l.byCaller[caller] < l.share }

// grant counts one more slot in use. mu must be held.
func (l *fairLimiter) grant(caller int64) {
	l.inUse++
	l.byCaller[caller]++
}

type (
	callerKey     struct{} // context key of the caller for whom the work is done
	slotCallerKey struct{} // context key of the caller whose slot an Acquire uses
)

// WithCaller marks work with the returned context as work for one caller; id 0 is the built-in admin. This work is
// limited to the caller's share of the connections (connectionLimiter). Unmarked work is not limited.
func WithCaller(ctx context.Context, id int64) context.Context {
	return context.WithValue(ctx, callerKey{}, id)
}

// WithoutCaller undoes WithCaller, for work that several callers wait for.
func WithoutCaller(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, nil)
}

// connectionLimiter lets callers share the connections of one pool fairly. One caller has at
// most half of the connections, but at least one. A quarter of the connections, rounded down, is left for unmarked work
// (see WithCaller), such as group commit and events; so a pool of fewer than four leaves none. A call that waits for a
// slot holds no connection. connectionLimiter is the tracer of the pool: the pool calls it when Acquire begins and ends,
// and when a connection is released.
type connectionLimiter struct {
	noQueryTracer
	*fairLimiter
}

func newConnectionLimiter(connections int) connectionLimiter {
	return connectionLimiter{fairLimiter: newFairLimiter(connections-connections/4, max(connections/2, 1))}
}

// TraceAcquireStart waits for a slot for the caller. If it gets no slot within connectionWaitLimit, it returns
// a context that is done, so that Acquire fails.
func (c connectionLimiter) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	caller, ok := ctx.Value(callerKey{}).(int64)
	if !ok {
		return ctx
	}
	limited, cancel := context.WithTimeout(ctx, connectionWaitLimit)
	defer cancel()
	if err := c.acquire(limited, caller); err != nil {
		return limited
	}
	return context.WithValue(ctx, slotCallerKey{}, caller)
}

// customDataCaller is the key in the custom data of a connection for the caller whose slot the connection uses.
const customDataCaller = "caller"

// TraceAcquireEnd records the caller of the slot on the connection. If Acquire has failed, it frees the slot.
func (c connectionLimiter) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	caller, ok := ctx.Value(slotCallerKey{}).(int64)
	switch {
	case !ok:
	case data.Conn == nil:
		c.release(caller)
	default:
		data.Conn.PgConn().CustomData()[customDataCaller] = caller
	}
}

// TraceRelease frees the slot.
func (c connectionLimiter) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	if caller, ok := data.Conn.PgConn().CustomData()[customDataCaller].(int64); ok {
		delete(data.Conn.PgConn().CustomData(), customDataCaller)
		c.release(caller)
	}
}

// noQueryTracer has the methods that pgx.QueryTracer requires. They do nothing.
type noQueryTracer struct{}

func (noQueryTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (noQueryTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
