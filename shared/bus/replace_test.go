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

// injector stands before a server and adds what a test says to what clients read.
type injector struct {
	addr    string
	mu      sync.Mutex
	clients []net.Conn
}

func newInjector(t *testing.T, server string) *injector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	i := &injector{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
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
	// Line by line: what is injected comes between two. No message of the test has a
	// line break in it.
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

// end writes text to every client and closes its connection, as a server does after
// an error.
func (i *injector) end(text string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, client := range i.clients {
		_, _ = io.WriteString(client, text)
		_ = client.Close()
	}
	i.clients = nil
}

func TestBusReplacesAClosedConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says      string // the server, before it closes
		permanent bool   // the client library closes its side permanently
	}{
		"kicked without a word":              {"", false},
		"authorization violation":            {"-ERR 'Authorization Violation'\r\n", false},
		"authentication expired":             {"-ERR 'User Authentication Expired'\r\n", false},
		"control line too long":              {"-ERR 'maximum control line exceeded'\r\n", true},
		"an error that the library has not":  {"-ERR 'Some Day Known'\r\n", true},
		"payload too large, said by another": {"-ERR 'Maximum Payload Violation'\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := bustest.NewBroker(t)
			between := newInjector(t, server.URL())
			b, neighbour := newBus(t, "nats://"+between.addr), newBus(t, server.URL())
			require.NoError(t, neighbour.Ensure(t.Context()))
			callers := followCallers(b)
			bustest.Eventually(t, callers.has(0, 1), "subscribed")
			follower := follow(t, b, "ann", nil)
			publishAll(t, neighbour, toUser("ann", "before"))
			require.Equal(t, []string{"before"}, reads(t, follower, 1))

			first := connectionOf(b)
			used, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
			require.NoError(t, err)
			between.end(c.says)
			bustest.Eventually(t, func() bool {
				_, err := b.connection(t.Context())
				return callers.has(0, 2)() && err == nil
			}, "subscribed again")
			require.Equal(t, c.permanent, connectionOf(b) != first)
			require.Equal(t, c.permanent, first.IsClosed())

			b.NotifyCaller(bustest.Within(t, bustest.Soon), "bob")
			bustest.Eventually(t, callers.has(1, 2), "a change of a caller arrives")
			publishAll(t, b, toUser("ann", "after"))
			require.Equal(t, []string{"after"}, reads(t, follower, 1))
			require.True(t, used.Lost(), "users of the old connection go on with the new one")
		})
	}
}

// The real server ends a connection over which too long a subject comes.
func TestBusSurvivesTooLongSubject(t *testing.T) {
	t.Parallel()
	b := newBus(t, bustest.NewBroker(t).URL())
	_, err := b.AwaitConnection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	first := connectionOf(b)
	require.NoError(t, first.Publish(strings.Repeat("x", 10_000), nil))
	bustest.Eventually(t, first.IsClosed, "closed permanently")
	bustest.Eventually(t, func() bool {
		_, err := b.connection(t.Context())
		return err == nil && connectionOf(b) != first
	}, "connected again")
	publishAll(t, b, eventMessage("after"))
	b.Close()
	require.True(t, connectionOf(b).IsClosed(), "and it stays closed after Close")
}

func connectionOf(b *Bus) *nats.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nc
}
