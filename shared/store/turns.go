package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// turnWait is how long a call waits for its turn. Then it is answered that the service
// is overloaded.
const turnWait = 10 * time.Second

// turns shares places among callers. One caller has at most share of them at once; of
// the callers that wait, the one served longest ago is next.
type turns struct {
	places, share int

	mu      sync.Mutex
	taken   int
	by      map[int64]int // by caller; no entry for none
	waiting callerQueues[turn]
}

// turn is a call that waits for a place.
type turn struct {
	caller  int64
	granted chan struct{}
}

func newTurns(places, share int) *turns {
	return &turns{places: places, share: share, by: map[int64]int{}}
}

// take waits for a place until ctx ends; give must follow unless there is an error.
func (t *turns) take(ctx context.Context, caller int64) error {
	t.mu.Lock()
	if t.taken < t.places && t.mayHave(caller) {
		t.grant(caller)
		t.mu.Unlock()
		return nil
	}
	waits := turn{caller, make(chan struct{})}
	t.waiting.push(caller, waits)
	t.mu.Unlock()
	select {
	case <-waits.granted:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting.remove(caller, func(other turn) bool { return other == waits }) {
		return ctx.Err()
	}
	return nil // it was granted meanwhile
}

// give frees a place and grants the next turns.
func (t *turns) give(caller int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	if t.by[caller]--; t.by[caller] == 0 {
		delete(t.by, caller)
	}
	for t.taken < t.places {
		next := t.waiting.take(1, t.mayHave)
		if len(next) == 0 {
			return
		}
		t.grant(next[0].caller)
		close(next[0].granted)
	}
}

func (t *turns) mayHave(caller int64) bool { return t.by[caller] < t.share }

// grant counts a place; mu is held.
func (t *turns) grant(caller int64) {
	t.taken++
	t.by[caller]++
}

// callerKey is the key of the caller of a call in its context; turnKey is that of the
// caller whose turn an Acquire uses.
type (
	callerKey struct{}
	turnKey   struct{}
)

// WithCaller has what is done with the context take its connections as one caller (ID 0
// included), which never has all of them. Without it, the work is not of one caller.
func WithCaller(ctx context.Context, id int64) context.Context {
	return context.WithValue(ctx, callerKey{}, id)
}

// withoutCaller is for work that several callers wait for.
func withoutCaller(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, nil)
}

// connectionTurns has callers take turns for the connections of one pool: half of them
// are for one caller at most, and three quarters for all callers, so that group commit
// and events find some. A call that waits holds no connection. Pools call their tracer
// at the beginning of each Acquire, and when a connection is released.
type connectionTurns struct {
	noQueryTracer
	*turns
}

func newConnectionTurns(connections int) connectionTurns {
	return connectionTurns{turns: newTurns(connections-connections/4, max(connections/2, 1))}
}

// TraceAcquireStart waits for the caller's turn. The context that it returns is over
// when there was none in time.
func (c connectionTurns) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	caller, ok := ctx.Value(callerKey{}).(int64)
	if !ok {
		return ctx
	}
	soon, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	if err := c.take(soon, caller); err != nil {
		return soon
	}
	return context.WithValue(ctx, turnKey{}, caller)
}

// TraceAcquireEnd notes whose turn the connection is used in.
func (c connectionTurns) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	caller, ok := ctx.Value(turnKey{}).(int64)
	switch {
	case !ok:
	case data.Conn == nil:
		c.give(caller)
	default:
		data.Conn.PgConn().CustomData()[customTurn] = caller
	}
}

// TraceRelease ends the turn.
func (c connectionTurns) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	if caller, ok := data.Conn.PgConn().CustomData()[customTurn].(int64); ok {
		delete(data.Conn.PgConn().CustomData(), customTurn)
		c.give(caller)
	}
}

const customTurn = "turn of caller"

// noQueryTracer is what a tracer of pools must be too.
type noQueryTracer struct{}

func (noQueryTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (noQueryTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
