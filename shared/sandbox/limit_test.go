package sandbox

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnectionAboveLimitClosesTheOldest(t *testing.T) {
	t.Parallel()
	plain, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := limitConnections(plain, 2)
	t.Cleanup(func() { _ = l.Close() })
	var accepted []net.Conn
	open := func() net.Conn {
		t.Helper()
		dialed, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = dialed.Close() })
		conn, err := l.Accept()
		require.NoError(t, err)
		accepted = append(accepted, conn)
		return dialed
	}
	for range 3 {
		open()
	}
	_, err = accepted[0].Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, accepted[1].Close())
	open()
	for _, conn := range accepted[2:] {
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}
