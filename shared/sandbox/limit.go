package sandbox

import (
	"net"
	"slices"
	"sync"
)

// limitConnections returns l with at most n open connections. If there are more, it closes the oldest one, so that idle
// connections cannot use up the limit.
func limitConnections(l net.Listener, n int) net.Listener {
	return &limitedListener{Listener: l, max: n}
}

type limitedListener struct {
	net.Listener
	max int

	mu   sync.Mutex
	open []*limitedConn // the oldest first
}

type limitedConn struct {
	*net.TCPConn
	listener *limitedListener
}

func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	added := &limitedConn{conn.(*net.TCPConn), l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, added)
	if len(l.open) > l.max {
		_ = l.open[0].TCPConn.Close() // the goroutine that serves it gets an error
		l.open = slices.Delete(l.open, 0, 1)
	}
	return added, nil
}

func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	if i := slices.Index(c.listener.open, c); i >= 0 {
		c.listener.open = slices.Delete(c.listener.open, i, i+1)
	}
	c.listener.mu.Unlock()
	return c.TCPConn.Close()
}
