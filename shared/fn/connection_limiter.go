package fn

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// idleConnections is how many connections may be open in addition to one for each call.
const idleConnections = 1024

// connectionLimiter limits the open connections of our server. For each new connection above the
// limit it closes one that has no call of a known caller: of some such connections, the one of the
// address that has most connections, and of these the one that was idle for longest. So connections
// without an authenticated call cannot keep others out.
type connectionLimiter struct {
	max int

	mu        sync.Mutex
	open      map[net.Conn]*connection
	byAddress map[netip.Prefix]int // number of open connections
}

// connection is one open connection.
type connection struct {
	limiter   *connectionLimiter
	address   netip.Prefix
	calls     int       // of known callers, under way
	idleSince time.Time // when the last one ended

	unknown atomic.Int32 // requests since the last one of a known caller
}

type connectionKey struct{}

func newConnectionLimiter(max int) *connectionLimiter {
	return &connectionLimiter{max: max, open: map[net.Conn]*connection{}, byAddress: map[netip.Prefix]int{}}
}

// add is the server's ConnContext.
func (c *connectionLimiter) add(ctx context.Context, conn net.Conn) context.Context {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // connections that are not IP count as one address
	added := &connection{limiter: c, address: network(host), idleSince: time.Now()}
	c.mu.Lock()
	c.open[conn] = added
	c.byAddress[added.address]++
	var surplus net.Conn
	if len(c.open) > c.max {
		surplus = c.pickIdle()
		c.drop(surplus)
	}
	c.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close() // the server sees it at its next read
	}
	return context.WithValue(ctx, connectionKey{}, added)
}

// pickIdle picks among some idle connections; mu is held. There is one, as max is greater than the
// number of calls.
func (c *connectionLimiter) pickIdle() (picked net.Conn) {
	const some = 64 // of thousands, in the random order of a map
	seen := 0
	for conn, this := range c.open {
		if this.calls > 0 {
			continue
		}
		best := c.open[picked]
		if best == nil || c.byAddress[this.address] > c.byAddress[best.address] || this.address == best.address && this.idleSince.Before(best.idleSince) {
			picked = conn
		}
		if seen++; seen == some {
			break
		}
	}
	return picked
}

// remove removes a closed connection.
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
	if c.byAddress[this.address]--; c.byAddress[this.address] == 0 {
		delete(c.byAddress, this.address)
	}
}

// KeepConnectionOpen keeps a BoundedServer from closing the connection of a call when too many are
// open, until end is called. The connection still counts. On other servers it does nothing.
func KeepConnectionOpen(ctx context.Context) (end func()) {
	c, ours := ctx.Value(connectionKey{}).(*connection)
	if !ours {
		return func() {}
	}
	c.count(1)
	return func() { c.count(-1) }
}

// maxUnknown is how many requests in a row without a known caller a connection may carry. Thousands
// of pipelined ones would keep a processor busy without ever waiting.
const maxUnknown = 64

// isUsedUp counts a request and reports whether its connection must end with it.
func isUsedUp(ctx context.Context) bool {
	c, ours := ctx.Value(connectionKey{}).(*connection)
	return ours && c.unknown.Add(1) >= maxUnknown
}

func (c *connection) count(n int) {
	c.unknown.Store(0)
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.calls += n
	c.idleSince = time.Now()
}
