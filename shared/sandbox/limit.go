package sandbox

import (
	"net"
	"slices"
	"sync"
)

// LimitConnections returns l with at most n open connections: a further one closes the
// one that was opened first, so that idle connections cannot use up all of them.
func LimitConnections(l net.Listener, n int) net.Listener {
	return &limitedListener{Listener: l, max: n}
}

type limitedListener struct {
	net.Listener
	max int

	mu   sync.Mutex
	open []*limitedConn // the oldest first
}

type limitedConn struct {
	net.Conn
	listener *limitedListener
}

// SetLinger calls that of net.TCPConn, with which a test can reset the connection.
func (c *limitedConn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.SetLinger(seconds)
	}
	return nil
}

func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	added := &limitedConn{conn, l}
	l.mu.Lock()
	l.open = append(l.open, added)
	var surplus *limitedConn
	if len(l.open) > l.max {
		surplus = l.open[0]
		l.open = slices.Delete(l.open, 0, 1)
	}
	l.mu.Unlock()
	if surplus != nil {
		_ = surplus.Conn.Close() // its server gets an error
	}
	return added, nil
}

func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	if i := slices.Index(c.listener.open, c); i >= 0 {
		c.listener.open = slices.Delete(c.listener.open, i, i+1)
	}
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
