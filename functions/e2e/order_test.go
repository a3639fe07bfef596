package e2e

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// saveNumbered is the ids of the n messages in the stream of messages, oldest first.
func saveNumbered(o *cluster.Cluster, n int) []string {
	o.T.Helper()
	ids := make([]string, n)
	for i, m := range storedMessages(o, n) {
		ids[i] = m.Header.Get("ce-id")
	}
	return ids
}

// waitAllSent waits until nothing is on its way; meanwhile runs before each look.
func waitAllSent(o *cluster.Cluster, meanwhile func()) {
	o.T.Helper()
	cluster.Eventually(o.T, func() bool {
		meanwhile()
		return o.Admin.Count(`select count(*) from message_live`) == 0
	}, "all are sent")
}

func TestMessagesWithoutStreamKeepTheirOrder(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	relay := o.At(o.Start("relay"))
	tick := func() { require.Equal(t, 204, relay.Tick("relay").Status) }
	require.NoError(t, cluster.EnsureStreams(t, o.NATS.URL()))
	ids := []string{o.Save("msg.orders.paid", cluster.WithoutConfirm)}
	waitAllSent(o, tick)

	require.NoError(t, o.NATS.Stop())
	const batch = 500 // of the relay
	for range batch + 1 {
		ids = append(ids, o.Save("msg.orders.paid", cluster.WithoutConfirm))
	}
	tick() // which ends although more is due
	require.Equal(t, batch+1, o.Admin.Count(`select count(*) from message_live l join messages m using (id)
		where next_at <= now() and remaining_sends = max_sends and l.xmin = m.xmin`), "they keep their places and are not written")
	require.Contains(t, o.Message(ids[batch+1]).LastError, "the broker cannot be reached")

	o.StartNATS()
	cluster.Eventually(t, func() bool {
		id := o.Save("msg.orders.paid", cluster.WithoutConfirm)
		ids = append(ids, id)
		tick()
		return o.Message(id).State == "sent"
	}, "the relay has found the broker again")
	waitAllSent(o, tick)
	require.Equal(t, ids, saveNumbered(o, len(ids)))
}

func TestSenderOrderSurvivesNATSOutages(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartRelay()
	o.WaitMessage(o.Save("msg.orders.paid", cluster.WithoutConfirm), "sent") // all is up
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	var mu sync.Mutex
	var ids []string
	sending.Go(func() {
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			<-pace.C
			req := api.MessageRequest{ClientMsgID: api.NewKey(), To: "msg.orders.paid", Data: []byte(`1`)}
			cluster.WithoutConfirm(&req)
			saved, err := o.Client.SubmitMessage(context.WithoutCancel(ctx), req)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			ids = append(ids, saved.ServerMsgID)
			mu.Unlock()
		}
	})
	saved := func() int { mu.Lock(); defer mu.Unlock(); return len(ids) }
	more := func(n int) {
		t.Helper()
		n += saved()
		cluster.Eventually(t, func() bool { return saved() >= n })
	}
	sentSince := func(n int) bool { return o.Admin.Count(`select count(*) from message_done`) > n }
	for range 3 {
		more(50)
		require.NoError(t, o.NATS.Stop())
		more(50)
		before := o.Admin.Count(`select count(*) from message_done`)
		o.StartNATS()
		cluster.Eventually(t, func() bool { return sentSince(before) }, "it goes on")
	}
	more(50)
	stop()
	sending.Wait()
	waitAllSent(o, func() {})
	require.Equal(t, ids, saveNumbered(o, len(ids)+1)[1:])
}

func TestFullStreamDelaysNoOther(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	relay := o.At(o.Start("relay"))
	tick := func() { require.Equal(t, 204, relay.Tick("relay").Status) }
	_, err := o.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "MESSAGES", Subjects: []string{"msg.>"}, Discard: jetstream.DiscardNew, MaxMsgs: 1, Duplicates: time.Minute,
	})
	require.NoError(t, err)
	require.NoError(t, cluster.EnsureStreams(t, o.NATS.URL()))
	o.Save("msg.orders.paid", cluster.WithoutConfirm)
	o.Save("user:bob")
	waitAllSent(o, tick) // it is full now

	const n = 600 // more than the relay takes at once
	for range n {
		o.Save("msg.orders.paid", cluster.WithoutConfirm)
	}
	bob := o.Save("user:bob")
	tick()
	require.Equal(t, "sent", o.Message(bob).State, "in the same run")
	require.Equal(t, n, o.Admin.Count(`select count(*) from message_live l join messages m using (id)
		where send_no = 0 and remaining_sends = max_sends and l.xmin = m.xmin`), "no send was used, and nothing was written")
	require.Contains(t, o.Admin.QueryText(`select reason from stream_pauses where stream = 'MESSAGES'`), "has no room")
}

func TestReusedIDDoesNotReplaceSavedMessage(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	saved, err := w.Client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "x", To: "user:bob", Data: api.JSON(`"A"`)})
	require.NoError(t, err)
	require.Equal(t, "saved", saved.Ack)
	hand, err := w.Admin.Owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), `select from message_live for update`) // no relay sends it
	require.NoError(t, err)
	require.Equal(t, saved.ServerMsgID, w.Accept("x", `"B"`).ServerMsgID)
	w.StartTrigger(w.Client.BaseURL)
	bodies := func() (all []string) {
		for _, m := range w.Inbox("bob") {
			all = append(all, string(m.Data))
		}
		return all
	}
	cluster.Eventually(t, func() bool { return len(bodies()) == 1 })
	require.Equal(t, []string{`"B"`}, bodies(), "delivered before it was found that it cannot be saved")
	require.NoError(t, hand.Commit(t.Context()))

	cluster.Eventually(t, func() bool { return w.Message(saved.ServerMsgID).State == "sent" })
	require.Equal(t, []string{`"B"`, `"A"`}, bodies(), "what is called sent is there")
	cluster.Eventually(t, func() bool { return len(w.Inbox("admin")) == 1 })
	var ack api.LateAck
	require.NoError(t, json.Unmarshal(w.Inbox("admin")[0].Data, &ack))
	require.Equal(t, "rejected", ack.AckType)
	require.Equal(t, saved.ServerMsgID, ack.ServerMsgID)
}
