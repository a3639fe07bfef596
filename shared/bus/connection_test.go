package bus

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// injector is a proxy in front of a server. It can send text of its own to the clients.
type injector struct {
	addr    string
	mu      sync.Mutex // while it is locked, clients receive nothing
	clients []net.Conn
}

func newInjector(t *testing.T, server string) *injector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	i := &injector{addr: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go i.serve(client, strings.TrimPrefix(server, "nats://"))
		}
	}()
	return i
}

func (i *injector) serve(client net.Conn, server string) {
	defer client.Close()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	i.mu.Lock()
	i.clients = append(i.clients, client)
	i.mu.Unlock()
	go func() {
		defer upstream.Close()
		_, _ = io.Copy(upstream, client)
	}()
	// Copy line by line, so that injected text is not inside a line. No message of the test has a line break.
	for lines := bufio.NewReader(upstream); ; {
		line, err := lines.ReadBytes('\n')
		i.mu.Lock()
		_, failed := client.Write(line)
		i.mu.Unlock()
		if err != nil || failed != nil {
			return
		}
	}
}

// end writes text to every client and closes the client's connection, as a server does after an error.
func (i *injector) end(text string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, client := range i.clients {
		_, _ = io.WriteString(client, text)
		_ = client.Close()
	}
	i.clients = nil
}

func TestBusWorksAfterClosedConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text      string // from the server, before it closes the connection
		permanent bool   // the client library closes the connection permanently
	}{
		"closed without an error":         {"", false},
		"authorization violation":         {"-ERR 'Authorization Violation'\r\n", false},
		"authentication expired":          {"-ERR 'User Authentication Expired'\r\n", false},
		"control line too long":           {"-ERR 'maximum control line exceeded'\r\n", true},
		"an error unknown to the library": {"-ERR 'Some Day Known'\r\n", true},
		"payload too large":               {"-ERR 'Maximum Payload Violation'\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := bustest.NewBroker(t)
			proxy := newInjector(t, server.URL())
			b, direct := newBus(t, "nats://"+proxy.addr), newBusWithStreams(t, Config{URL: server.URL()})
			callers := followCallers(b)
			bustest.Eventually(t, callers.has(0, 1), "subscribed")
			follower := follow(t, b, "ann", nil)
			publishAll(t, direct, toUser("ann", "before"))
			require.Equal(t, []string{"before"}, readIDs(t, follower, 1))

			oldClient := connectionOf(b)
			oldConn, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
			require.NoError(t, err)
			proxy.end(c.text)
			bustest.Eventually(t, func() bool {
				_, err := b.connection(t.Context())
				return callers.has(0, 2)() && err == nil
			}, "subscribed again")
			require.Equal(t, c.permanent, connectionOf(b) != oldClient)
			require.Equal(t, c.permanent, oldClient.IsClosed())

			b.NotifyCallerChanged(bustest.Within(t, bustest.Soon), "bob")
			bustest.Eventually(t, callers.has(1, 2), "changes of callers are received")
			publishAll(t, b, toUser("ann", "after"))
			require.Equal(t, []string{"after"}, readIDs(t, follower, 1))
			require.True(t, oldConn.Lost())
		})
	}
}

// A real server closes a connection on which it receives a too long subject.
func TestBusSurvivesTooLongSubject(t *testing.T) {
	t.Parallel()
	_, b := newBrokerWithStreams(t)
	old := connectionOf(b)
	require.NoError(t, old.Publish(strings.Repeat("x", 10_000), nil))
	bustest.Eventually(t, old.IsClosed, "closed permanently")
	bustest.Eventually(t, func() bool {
		_, err := b.connection(t.Context())
		return err == nil && connectionOf(b) != old
	}, "connected again")
	publishAll(t, b, eventMessage("after"))
	b.Close()
	require.True(t, connectionOf(b).IsClosed(), "a connection that Close has closed is not replaced")
}

func connectionOf(b *Bus) *nats.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nc
}
