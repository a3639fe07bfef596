package bus

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// serveHeaders runs the part of a trigger that reads the headers of messages, with one fetch for each
// request, and waits until the trigger has replied to client.
func serveHeaders(t *testing.T, b, client *Bus) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.serveHeaders(ctx, 1) }()
	t.Cleanup(func() { stop(); <-ended })
	conn, err := client.connection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	bustest.Eventually(t, func() bool {
		m, err := conn.nats().Request(headersPrefix+StreamMessages, []byte(`{}`), bustest.Soon)
		return err == nil && len(m.Data) > 0
	}, "the trigger replies")
}

// The trigger replies to deliver with the permissions of the trigger, so the trigger must publish only to reply subjects.
func TestHeadersAreSentToReplySubjectsOnly(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	deliver := g.bus("deliver")
	deliver.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	_, err := deliver.TrimMessages(bustest.Within(t, bustest.Soon), 0, false, statesOf(nil))
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "no trigger")
	serveHeaders(t, g.bus(UserTrigger), deliver)

	lastWake := func() uint64 { return g.Stream(StreamWake).CachedInfo().State.LastSeq }
	want, before := g.messageCounts(), lastWake()
	a := g.attacker("deliver")
	for _, stream := range []string{StreamMessages, StreamUsers} {
		for _, reply := range []string{
			"$JS.API.STREAM.DELETE.ACCEPTED", "$JS.API.STREAM.PURGE.ACCEPTED", "$JS.API.STREAM.UPDATE.EVENTS", "$JS.ACK.ACCEPTED.save-1-of-1.1.1.1.1.0",
			"wake.relay", "dlq.EVENTS.record", "_INBOX.submit.x",
		} {
			require.NoError(t, a.nc.PublishRequest(headersPrefix+stream, reply, []byte(`{}`)))
		}
	}
	long := reliableMessage(strings.Repeat("1", headersMax+1), "msg.orders.paid")
	long.MsgID = "long"
	publishAll(t, g.bus("relay"), reliableMessage("r", "msg.orders.paid"), long)
	trimmed, err := deliver.TrimMessages(bustest.Within(t, bustest.Soon), 0, false, statesOf(map[string]MessageState{"r": Finished, "m": Finished, "": Finished}))
	require.NoError(t, err)
	require.Equal(t, TrimResult{Removed: 1}, trimmed, "only r: the relay has not published m, and too long ids are not sent")
	want[StreamMessages]++
	require.Equal(t, want, g.messageCounts())
	require.Equal(t, before, lastWake())

	conn, err := deliver.connection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	in, err := readUserMessages(bustest.Within(t, bustest.Soon), conn, 1)
	require.NoError(t, err)
	require.Len(t, in.messages, 1)
	require.Equal(t, "ann", in.user[0])
}

// A page is no larger than the server's max_payload allows.
func TestHeadersAreSplitIntoPages(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBusInAnHour(t, broker.URL())
	var messages []Message
	subject := "msg." + strings.Repeat("x", 1000)
	for i := range 300 {
		messages = append(messages, reliableMessage(fmt.Sprint(i), subject))
	}
	publishAll(t, b, messages...)
	conn, err := b.connection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	pages, next := 0, uint64(1)
	read := func(messages []messageHeader) (bool, error) {
		for _, m := range messages {
			require.Equal(t, messageHeader{Seq: next, At: m.At, Subject: subject, ID: fmt.Sprint(next - 1), Source: messageSourcePrefix + "shop", MsgID: fmt.Sprint(next-1) + ".1.1"}, m)
			next++
		}
		pages++
		return true, nil
	}
	require.NoError(t, conn.readHeaders(bustest.Within(t, bustest.Soon), StreamMessages, 1, time.Time{}, read))
	require.EqualValues(t, 301, next)
	require.Equal(t, 3, pages)

	pages, next = 0, 1
	require.NoError(t, conn.readHeaders(bustest.Within(t, bustest.Soon), StreamMessages, 1, time.Now().Add(-time.Hour), read))
	require.EqualValues(t, 301, next, "the fetch that has a younger message is read to its end")
	stream := broker.Stream(StreamMessages)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(300)))
	next = 300
	require.NoError(t, conn.readHeaders(bustest.Within(t, bustest.Soon), StreamMessages, 1, time.Time{}, read))
	require.EqualValues(t, 301, next, "removed messages are skipped")
}
