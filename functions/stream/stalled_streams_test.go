package stream_test

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// stalledLength is the length of the data of each message; HTML escapes would make it six times as long.
const stalledLength = 55_000

// stalledMemory is the memory that a stream reserves for an event at least while it sends the event: 2 copies of the data
// (sendCopies).
const stalledMemory = 2 * stalledLength

// openBus connects to a NATS server, and creates the streams.
func openBus(t *testing.T, url string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(bus.Config{URL: url, Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(b.Close)
	require.NoError(t, b.Ensure(t.Context()))
	return b
}

// newMessage returns a message to a user, without data.
func newMessage(user, id string) bus.Message {
	e := cloudevents.NewEvent()
	e.SetID(id)
	e.SetSource("/test")
	e.SetType("text")
	return bus.Message{Subject: bus.UserSubject(user), Event: e}
}

// fillInbox publishes n messages of stalledLength to a user.
func fillInbox(t *testing.T, b *bus.Bus, user string, n int) {
	t.Helper()
	messages := make([]bus.Message, n)
	for i := range messages {
		messages[i] = newMessage(user, fmt.Sprintf("%s-%d", user, i))
		require.NoError(t, messages[i].Event.SetData(cloudevents.ApplicationJSON, []byte(`"`+strings.Repeat("<", stalledLength)+`"`)))
	}
	for _, err := range b.Publish(t.Context(), messages) {
		require.NoError(t, err)
	}
}

// serveWithSmallBuffer serves h over connections with a small write buffer, so that writes wait for a client that does not read.
func serveWithSmallBuffer(t *testing.T, h http.Handler) *cluster.Client {
	t.Helper()
	web := httptest.NewUnstartedServer(h)
	web.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			_ = c.(*net.TCPConn).SetWriteBuffer(4 << 10) // fails on a connection that has ended
		}
	}
	web.Start()
	t.Cleanup(web.Close)
	return cluster.NewClient(t, web.URL)
}

// upgradeHeaders request a WebSocket.
const upgradeHeaders = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

// openStalled opens a stream from which nothing is read. headers are "" or upgradeHeaders.
func openStalled(s *cluster.Client, path, headers string) net.Conn {
	s.T.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	require.NoError(s.T, err)
	s.T.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %s\r\n%s\r\n",
		path, base64.StdEncoding.EncodeToString([]byte(s.User+":"+s.Password)), headers)
	require.NoError(s.T, err)
	return conn
}

// memoryUsed matches the metric of the bytes that all calls together have reserved.
var memoryUsed = regexp.MustCompile(`(?m)^sendonce_memory_budget_used_bytes (\S+)`)

// Events that clients do not read use only memory of their caller's share, which is 512 KiB in this test.
func TestStalledStreamsUseOnlyTheirCallersMemory(t *testing.T) {
	t.Parallel()
	broker, url := cluster.NewNATS(t), sandbox.NewDatabase(t)
	b := openBus(t, broker.URL())
	_, h := cluster.NewEnv(t, url, cluster.WithNATS(t, broker.URL()), func(c *settings.Config) { c.MemoryMB = 1 })
	s := serveWithSmallBuffer(t, h).Connect(url)
	mallory, ann := s.NewCaller("mallory", "receiver"), s.NewCaller("ann", "receiver")
	const events = 8
	fillInbox(t, b, "mallory", events)
	fillInbox(t, b, "ann", events)
	used := func() int {
		number := memoryUsed.FindStringSubmatch(cluster.Metrics(t, s.URL))
		require.NotNil(t, number)
		n, err := strconv.ParseFloat(number[1], 64)
		require.NoError(t, err)
		return int(n)
	}

	from := cluster.StreamsPath + "mallory?after=0"
	var stalled []net.Conn
	for _, headers := range []string{upgradeHeaders, "", upgradeHeaders, "", upgradeHeaders} {
		stalled = append(stalled, openStalled(mallory, from, headers))
	}
	cluster.Eventually(t, func() bool { return used() > 4*stalledMemory }, "at least four of the five streams hold an event, and the share has no room for another one")
	cut := cluster.OpenStream(mallory, from)
	text, err := cut.Body.ReadString(0)
	require.Error(t, err)
	require.NotContains(t, text, "retry:", "a stream that ends because there is no memory does not send retry")
	require.Less(t, strings.Count(text, "event: message"), events)

	reader := cluster.OpenStream(ann, cluster.StreamsPath+"ann?after=0")
	for n := range events {
		require.Equal(t, fmt.Sprintf("ann-%d", n), reader.NextMessage(), "streams of other callers are not affected")
	}
	require.Less(t, reader.Text.Len(), events*(stalledLength+1000), "without HTML escapes")

	for _, conn := range stalled {
		require.NoError(t, conn.Close())
	}
	cluster.Eventually(t, func() bool { return used() < stalledMemory }, "the memory is released")
	again := cluster.OpenStream(mallory, from)
	for n := range events {
		require.Equal(t, fmt.Sprintf("mallory-%d", n), again.NextMessage())
	}
}
