package fn

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// idleConnections is how many connections there may be beside one for each call.
const idleConnections = 1024

// connectionLimiter bounds the open connections of our server. One more than allowed
// closes another that carries no call of a known caller: one of the address that has
// most of them, the one that was idle for longest. So connections without
// an authenticated call cannot keep others out.
type connectionLimiter struct {
	max int

	mu   sync.Mutex
	open map[net.Conn]*connection
	from map[netip.Prefix]int // open ones
}

// connection is one open connection.
type connection struct {
	all   *connectionLimiter
	from  netip.Prefix
	calls int       // of known callers, under way
	since time.Time // when the last one ended

	unknown atomic.Int32 // requests since the last one of a known caller
}

type connectionKey struct{}

func newConnectionLimiter(max int) *connectionLimiter {
	return &connectionLimiter{max: max, open: map[net.Conn]*connection{}, from: map[netip.Prefix]int{}}
}

// add is the server's ConnContext.
func (c *connectionLimiter) add(ctx context.Context, conn net.Conn) context.Context {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // of another kind of network all are one address
	added := &connection{all: c, from: network(host), since: time.Now()}
	c.mu.Lock()
	c.open[conn] = added
	c.from[added.from]++
	var surplus net.Conn
	if len(c.open) > c.max {
		surplus = c.pickIdle()
		c.drop(surplus)
	}
	c.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close() // its server finds out
	}
	return context.WithValue(ctx, connectionKey{}, added)
}

// pickIdle picks among some idle connections; mu is held. There are some, as the
// calls are fewer than the connections may be.
func (c *connectionLimiter) pickIdle() (picked net.Conn) {
	const some = 64 // of thousands, in the random order of a map
	seen := 0
	for conn, this := range c.open {
		if this.calls > 0 {
			continue
		}
		best := c.open[picked]
		if best == nil || c.from[this.from] > c.from[best.from] || this.from == best.from && this.since.Before(best.since) {
			picked = conn
		}
		if seen++; seen == some {
			break
		}
	}
	return picked
}

// remove is for connections that are closed.
func (c *connectionLimiter) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(conn)
}

// drop is remove; mu is held.
func (c *connectionLimiter) drop(conn net.Conn) {
	this := c.open[conn]
	if this == nil {
		return
	}
	delete(c.open, conn)
	if c.from[this.from]--; c.from[this.from] == 0 {
		delete(c.from, this.from)
	}
}

// KeepConnectionOpen keeps the connection of a call open until the call ends. It does nothing on
// servers that are not ours.
func KeepConnectionOpen(ctx context.Context) (end func()) {
	c, ours := ctx.Value(connectionKey{}).(*connection)
	if !ours {
		return func() {}
	}
	c.count(1)
	return func() { c.count(-1) }
}

// maxUnknown is how many requests in a row without a known caller a connection may carry. One that
// has thousands of them in its buffer would keep a processor busy without ever waiting.
const maxUnknown = 64

// isUsedUp counts a request and reports whether its connection must end with it.
func isUsedUp(ctx context.Context) bool {
	c, ours := ctx.Value(connectionKey{}).(*connection)
	return ours && c.unknown.Add(1) >= maxUnknown
}

func (c *connection) count(n int) {
	c.unknown.Store(0)
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.calls += n
	c.since = time.Now()
}
