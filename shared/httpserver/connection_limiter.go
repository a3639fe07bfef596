package httpserver

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// connectionLimiter limits the open connections. For each new connection above the limit it closes a
// connection without a call of a known caller (see KeepConnectionOpen). It compares some such connections
// and chooses the address that has most connections, and of that address the connection that has been idle
// for longest. So clients that do not authenticate cannot keep other clients out.
type connectionLimiter struct {
	max int

	mu        sync.Mutex
	open      map[net.Conn]*openConn
	byAddress map[netip.Prefix]int // number of open connections
}

type openConn struct {
	limiter   *connectionLimiter
	address   netip.Prefix
	calls     int       // of known callers, in progress
	idleSince time.Time // when the last call of a known caller ended, or the connection began if there was none

	unknown atomic.Int32 // requests since the last call of a known caller
}

// openConnKey is the key of the *openConn in the contexts of a connection's requests.
type openConnKey struct{}

func newConnectionLimiter(max int) *connectionLimiter {
	return &connectionLimiter{max: max, open: map[net.Conn]*openConn{}, byAddress: map[netip.Prefix]int{}}
}

// add is the server's ConnContext.
func (l *connectionLimiter) add(ctx context.Context, conn net.Conn) context.Context {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // "" if it is not IP: such connections share one address
	added := &openConn{limiter: l, address: ClientNetwork(host), idleSince: time.Now()}
	l.mu.Lock()
	l.open[conn] = added
	l.byAddress[added.address]++
	var surplus net.Conn
	if len(l.open) > l.max {
		surplus = l.pickIdle()
		l.removeLocked(surplus)
	}
	l.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close() // the next read of the server fails
	}
	return context.WithValue(ctx, openConnKey{}, added)
}

// pickIdle picks one of at most maxCompared connections without a call; mu is held. There is such a connection:
// the newest one.
func (l *connectionLimiter) pickIdle() (picked net.Conn) {
	const maxCompared = 64 // of thousands; a map has a random order
	compared := 0
	for conn, c := range l.open {
		if c.calls > 0 {
			continue
		}
		best := l.open[picked]
		if best == nil || l.byAddress[c.address] > l.byAddress[best.address] || c.address == best.address && c.idleSince.Before(best.idleSince) {
			picked = conn
		}
		if compared++; compared == maxCompared {
			break
		}
	}
	return picked
}

// remove removes a closed connection, unless it is removed already.
func (l *connectionLimiter) remove(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(conn)
}

func (l *connectionLimiter) removeLocked(conn net.Conn) {
	c := l.open[conn]
	if c == nil {
		return
	}
	delete(l.open, conn)
	if l.byAddress[c.address]--; l.byAddress[c.address] == 0 {
		delete(l.byAddress, c.address)
	}
}

// KeepConnectionOpen marks the call with the context ctx as that of a known caller: until end is called, the Server
// does not close its connection when too many connections are open. The connection still counts towards the
// limit. On other servers KeepConnectionOpen does nothing.
func KeepConnectionOpen(ctx context.Context) (end func()) {
	c, ours := ctx.Value(openConnKey{}).(*openConn)
	if !ours {
		return func() {}
	}
	c.addCalls(1)
	return func() { c.addCalls(-1) }
}

func (c *openConn) addCalls(n int) {
	c.unknown.Store(0)
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.calls += n
	c.idleSince = time.Now()
}

// maxUnknown is how many requests in a row a connection may carry without KeepConnectionOpen. Thousands
// of pipelined requests would keep a processor busy without ever waiting.
const maxUnknown = 64

// CountRequest counts a request, and reports whether its connection must be closed after the response.
func CountRequest(ctx context.Context) (last bool) {
	c, ours := ctx.Value(openConnKey{}).(*openConn)
	return ours && c.unknown.Add(1) >= maxUnknown
}

// ClientNetwork returns all addresses of a client: the address itself, or the /64 of an IPv6 address, since one client
// can use the whole /64. If the text is not an address, ClientNetwork returns the zero Prefix.
func ClientNetwork(address string) netip.Prefix {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // bits is valid
	return p
}
