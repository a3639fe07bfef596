package bus

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/url"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// subscribeWithoutReading subscribes over a connection that does not read its messages.
func (g *securedBroker) subscribeWithoutReading(user, subject string) {
	g.t.Helper()
	u, err := url.Parse(g.URL())
	require.NoError(g.t, err)
	conn, err := net.Dial("tcp", u.Host)
	require.NoError(g.t, err)
	g.t.Cleanup(func() { conn.Close() })
	require.NoError(g.t, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"user\":%q,\"pass\":%q}\r\nSUB %s 1\r\nPING\r\n", user, bustest.Password, subject)
	require.NoError(g.t, err)
	r := bufio.NewReaderSize(conn, 4096)
	for line := ""; line != "PONG\r\n"; {
		line, err = r.ReadString('\n')
		require.NoError(g.t, err)
	}
}

// slowClients receives the log lines about connections that the server has closed because of MaxPending.
type slowClients chan string

func (c slowClients) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("MaxPending")) {
		c <- string(line)
	}
	return len(line), nil
}

func TestSlowConsumerIsDisconnected(t *testing.T) {
	t.Parallel()
	options, slow := securedOptions(t.TempDir()), make(slowClients, 10)
	options.Log = slow
	g := &securedBroker{bustest.NewBrokerWith(t, options), t}
	subject := QueueSubject("q")
	g.subscribeWithoutReading("claim", subject)
	reader := g.attacker("claim").nc
	messages, err := reader.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, reader.Flush())

	publisher, body := g.attacker("submit").nc, bytes.Repeat([]byte("x"), 900_000)
	for sent := 0; len(slow) == 0; sent += len(body) {
		require.Less(t, sent, 50_000_000, "the server must close the connection that does not read, at MaxPending")
		require.NoError(t, publisher.Publish(subject, body))
		_, err := messages.NextMsg(bustest.Soon)
		require.NoError(t, err, "the reading connection receives each message")
	}
	require.Contains(t, <-slow, "user:claim")
	require.True(t, reader.IsConnected())
}

func TestConnectionsOfOneAccountAreLimited(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t, "points")
	connect := func(user string) error {
		nc, err := nats.Connect(g.URLAs(user))
		if err == nil {
			t.Cleanup(nc.Close)
		}
		return err
	}
	for range receiverConnections {
		require.NoError(t, connect("points"))
	}
	require.ErrorContains(t, connect("points"), "maximum account active connections exceeded")
	require.NoError(t, connect("submit"), "users of another account still connect")

	var err error
	for opened := 0; err == nil; opened++ {
		require.Less(t, opened, accountConnections, "connections of functions are limited")
		err = connect("submit")
	}
	require.ErrorContains(t, err, "maximum account active connections exceeded")
}
