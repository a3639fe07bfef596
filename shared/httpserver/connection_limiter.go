package httpserver

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// connectionLimiter limits the open connections. For each new connection above the limit it closes a connection
// without a call of a known caller (see KeepConnectionOpen): it sorts a sample of these connections by these rules and
// closes the first. Each rule decides between connections that the rules before it leave equal:
//  1. First those of accounts that have more than a quarter of the limit, then those that no known caller has used,
//     last those of other accounts.
//  2. Connections that have been idle for less than timeToAuthenticate come after the others.
//  3. Connections from the address with the most connections that no known caller has used come first.
//  4. Connections that have been idle for longer come first.
//
// So clients that do not authenticate cannot keep other clients out, however many addresses they have.
type connectionLimiter struct {
	max int

	mu        sync.Mutex
	open      map[net.Conn]*openConn
	byAddress map[netip.Prefix]int // number of open connections that no known caller has used
	byAccount map[int64]int        // number of open connections, by openConn.account
}

type openConn struct {
	limiter   *connectionLimiter
	conn      net.Conn
	address   netip.Prefix
	account   int64     // of the last known caller, or NoAccount
	calls     int       // of known callers, in progress
	idleSince time.Time // when the last call of a known caller began or ended; without one, when the connection was accepted

	unknown atomic.Int32 // requests, since the last call of a known caller, whose caller is not known
}

// openConnKey is the key of the *openConn in the contexts of a connection's requests.
type openConnKey struct{}

func newConnectionLimiter(max int) *connectionLimiter {
	return &connectionLimiter{max: max, open: map[net.Conn]*openConn{}, byAddress: map[netip.Prefix]int{}, byAccount: map[int64]int{}}
}

// add is the server's ConnContext.
func (l *connectionLimiter) add(ctx context.Context, conn net.Conn) context.Context {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // "" if it is not IP: such connections share one address
	added := &openConn{limiter: l, conn: conn, address: ClientNetwork(host), account: NoAccount, idleSince: time.Now()}
	l.mu.Lock()
	l.open[conn] = added
	l.byAddress[added.address]++
	l.byAccount[added.account]++
	var surplus net.Conn
	if len(l.open) > l.max {
		surplus = l.pickIdle(conn)
		if l.open[surplus].account == NoAccount {
			discardUnsent(surplus)
		}
		l.removeLocked(surplus)
	}
	l.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close() // the next read of the server fails
	}
	return context.WithValue(ctx, openConnKey{}, added)
}

// pickIdle picks the connection to close, of at most maxCompared connections without a call of a known caller. It picks
// newest, whose client has had no time to send a call, only if all other connections have such calls. mu is held.
func (l *connectionLimiter) pickIdle(newest net.Conn) net.Conn {
	const maxCompared = 256 // of thousands; a map has a random order
	picked, compared := newest, 0
	for conn, c := range l.open {
		if c.calls > 0 || conn == newest {
			continue
		}
		if picked == newest || l.isClosedBefore(c, l.open[picked]) {
			picked = conn
		}
		if compared++; compared == maxCompared {
			break
		}
	}
	return picked
}

// isClosedBefore compares two connections by the rules of connectionLimiter.
func (l *connectionLimiter) isClosedBefore(a, b *openConn) bool {
	if x, y := l.rank(a), l.rank(b); x != y {
		return x < y
	}
	if a.isIdleBriefly() != b.isIdleBriefly() {
		return b.isIdleBriefly()
	}
	if x, y := l.byAddress[a.address], l.byAddress[b.address]; x != y {
		return x > y
	}
	return a.idleSince.Before(b.idleSince)
}

// rank is lower for connections that are closed before others.
func (l *connectionLimiter) rank(c *openConn) int {
	switch {
	case c.account == NoAccount:
		return 1
	case l.byAccount[c.account] > l.max/4:
		return 0
	default:
		return 2
	}
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
	if c.account == NoAccount {
		decrement(l.byAddress, c.address)
	}
	decrement(l.byAccount, c.account)
}

func decrement[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// timeToAuthenticate is how long the first call of a client may take to arrive and to be authenticated.
const timeToAuthenticate = 2 * time.Second

func (c *openConn) isIdleBriefly() bool { return time.Since(c.idleSince) < timeToAuthenticate }

// NoAccount is the account of a connection before a known caller uses it.
const NoAccount = -1

// KeepConnectionOpen marks the call with the context ctx as a call of a known caller: until end is called, the Server
// does not close the connection of the call when too many connections are open. The connection still counts towards
// the limit. From now on, it is a connection of this account (see connectionLimiter), unless account is NoAccount.
// On other servers KeepConnectionOpen does nothing.
func KeepConnectionOpen(ctx context.Context, account int64) (end func()) {
	c, ours := ctx.Value(openConnKey{}).(*openConn)
	if !ours {
		return func() {}
	}
	c.addCalls(1, account)
	return func() { c.addCalls(-1, account) }
}

func (c *openConn) addCalls(n int, account int64) {
	c.unknown.Store(0)
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	c.calls += n
	c.idleSince = time.Now()
	if account == c.account || account == NoAccount {
		return
	}
	if l.open[c.conn] == c {
		if c.account == NoAccount {
			decrement(l.byAddress, c.address)
		}
		decrement(l.byAccount, c.account)
		l.byAccount[account]++
	}
	c.account = account
}

// maxUnknown is how many requests in a row a connection may carry without KeepConnectionOpen. Otherwise
// thousands of pipelined requests of an unknown client would keep a processor busy without ever waiting.
const maxUnknown = 64

// CountRequest counts a request, and reports whether its connection must be closed after the response.
func CountRequest(ctx context.Context) (last bool) {
	c, ours := ctx.Value(openConnKey{}).(*openConn)
	return ours && c.unknown.Add(1) >= maxUnknown
}

// ClientNetwork returns the addresses that limits count as one client: the address itself, or the /64 of an IPv6
// address, since one client can use a whole /64. If the text is not an address, ClientNetwork returns the zero Prefix.
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

// discardUnsent makes Close free the memory of the connection at once. Otherwise the kernel keeps what the client does not read,
// also after Close.
func discardUnsent(conn net.Conn) {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only if the connection is closed already
	}
}
