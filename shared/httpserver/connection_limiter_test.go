package httpserver

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const maxConnections = 64

// serveCallers returns the address of a server that allows maxConnections. A call with the header Account is a call of a
// known caller of this account.
func serveCallers(t *testing.T) string {
	t.Helper()
	s := New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if account, err := strconv.ParseInt(r.Header.Get("Account"), 10, 64); err == nil {
			defer KeepConnectionOpen(r.Context(), account)()
		}
	}), maxConnections, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	go func() { _ = s.Serve(l) }() // until Close
	return l.Addr().String()
}

// fromNewAddresses returns a function that connects to the server at address, each time from another address.
func fromNewAddresses(t *testing.T, address string) (connect func() *client) {
	n := 0
	return func() *client {
		t.Helper()
		n++
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 1+byte(n/250), 1+byte(n%250))}
		dialer := net.Dialer{LocalAddr: from}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Skip("this system has only one loopback address")
		}
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(waitAtMost)))
		return &client{t, conn, bufio.NewReader(conn)}
	}
}

// call makes a call of a known caller, or of an anonymous client if account is NoAccount.
func (c *client) call(account int64) {
	c.t.Helper()
	header := ""
	if account != NoAccount {
		header = fmt.Sprintf("Account: %d\r\n", account)
	}
	c.send("GET / HTTP/1.1\r\nHost: x\r\n" + header + "\r\n")
	require.Equal(c.t, 200, c.status())
}

func TestAnonymousConnectionsCloseNoConnectionOfCaller(t *testing.T) {
	t.Parallel()
	address := serveCallers(t)
	connect := fromNewAddresses(t, address)
	var known []*client
	for range maxConnections / 4 {
		c := dial(t, address) // all from one address, as behind a proxy
		c.call(7)
		known = append(known, c)
	}
	for range 2 * maxConnections {
		connect().call(NoAccount)
	}
	for _, c := range known {
		c.call(7)
	}
}

// fakeConn is a connection from an address, which only shows whether it was closed.
type fakeConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 1}
}

func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// newTestLimiter returns a limiter of maxConnections, and a function that adds a connection from an address.
func newTestLimiter(t *testing.T) (l *connectionLimiter, connect func(from string) *fakeConn) {
	l = newConnectionLimiter(maxConnections)
	return l, func(from string) *fakeConn {
		c := &fakeConn{from: from}
		l.add(t.Context(), c)
		return c
	}
}

func TestNewConnectionHasTimeToSendItsCall(t *testing.T) {
	t.Parallel()
	l, connect := newTestLimiter(t)
	for n := range maxConnections {
		l.open[connect(fmt.Sprint("203.0.113.", n))].idleSince = time.Now().Add(-timeToAuthenticate)
	}
	var fresh []*fakeConn
	for range 8 {
		fresh = append(fresh, connect("198.51.100.1")) // of a proxy with many clients
	}
	for n := range maxConnections / 2 {
		connect(fmt.Sprint("192.0.2.", n))
	}
	for _, c := range fresh {
		require.False(t, c.closed)
	}
}

func TestConnectionsOfGreedyCallerAreClosedFirst(t *testing.T) {
	t.Parallel()
	l, connect := newTestLimiter(t)
	for n := range maxConnections {
		l.open[connect(fmt.Sprint("203.0.113.", n))].addCalls(0, 7)
	}
	idle := connect("198.51.100.1")
	l.open[idle].idleSince = time.Now().Add(-timeToAuthenticate)
	fresh := connect("198.51.100.2")
	connect("198.51.100.3")
	require.Equal(t, []bool{false, false}, []bool{idle.closed, fresh.closed})
}

func TestGreedyCallerDoesNotKeepOthersOut(t *testing.T) {
	t.Parallel()
	address := serveCallers(t)
	connect := fromNewAddresses(t, address)
	other := dial(t, address)
	other.call(8)
	for range 2 * maxConnections {
		connect().call(7)
	}
	other.call(8)
	dial(t, address).call(9)
}
