package sandbox

import (
	"net"
	"testing"
)

// ServeTCP starts a server until the end of the test, and returns its address. The server calls serve for each connection;
// n counts the connections from 1.
func ServeTCP(t testing.TB, serve func(n int, conn net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for n := 1; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(n, conn)
			}()
		}
	}()
	return listener.Addr().String()
}
