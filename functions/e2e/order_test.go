package e2e

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// saveNumbered is the ids of the n messages in the stream of messages, oldest first.
func saveNumbered(o *postOffice, n int) []string {
	o.t.Helper()
	ids := make([]string, n)
	for i, m := range storedMessages(o, n) {
		ids[i] = m.Header.Get("ce-id")
	}
	return ids
}

// waitAllSent waits until nothing is on its way; meanwhile runs before each look.
func waitAllSent(o *postOffice, meanwhile func()) {
	o.t.Helper()
	require.Eventually(o.t, func() bool {
		meanwhile()
		return o.looker.count(`select count(*) from message_live`) == 0
	}, waitLimit, 20*time.Millisecond, "all are sent")
}

func TestWhatMetNobodyIsNotOvertakenByWhatIsSavedLater(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	relay := o.at(o.start("relay"))
	tick := func() { require.Equal(t, 204, relay.tick("relay").status) }
	require.NoError(t, ensureStreams(t, o.nats.URL()))
	ids := []string{o.save("msg.orders.paid", once)}
	waitAllSent(o, tick)

	require.NoError(t, o.nats.Stop())
	const batch = 500 // of the relay
	for range batch + 1 {
		ids = append(ids, o.save("msg.orders.paid", once))
	}
	tick() // which ends although more is due
	require.Equal(t, batch+1, o.looker.count(`select count(*) from message_live l join messages m using (id)
		where next_at <= now() and remaining_sends = max_sends and l.xmin = m.xmin`), "they keep their places and are not written")
	require.Contains(t, o.state(ids[batch+1]).LastError, "the broker cannot be reached")

	o.nats = natsIn(t, o.options)
	require.Eventually(t, func() bool {
		id := o.save("msg.orders.paid", once)
		ids = append(ids, id)
		tick()
		return o.state(id).State == "sent"
	}, waitLimit, 20*time.Millisecond, "the relay has found the broker again")
	waitAllSent(o, tick)
	require.Equal(t, ids, saveNumbered(o, len(ids)))
}

func TestASendersOrderSurvivesOutagesOfNATS(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	o.startRelay()
	o.until(o.save("msg.orders.paid", once), "sent") // all is up
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
			once(&req)
			saved, err := o.client.SubmitMessage(context.WithoutCancel(ctx), req)
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
		require.Eventually(t, func() bool { return saved() >= n }, waitLimit, time.Millisecond)
	}
	sentSince := func(n int) bool { return o.looker.count(`select count(*) from message_done`) > n }
	for range 3 {
		more(50)
		require.NoError(t, o.nats.Stop())
		more(50)
		before := o.looker.count(`select count(*) from message_done`)
		o.nats = natsIn(t, o.options)
		require.Eventually(t, func() bool { return sentSince(before) }, waitLimit, time.Millisecond, "it goes on")
	}
	more(50)
	stop()
	sending.Wait()
	waitAllSent(o, func() {})
	require.Equal(t, ids, saveNumbered(o, len(ids)+1)[1:])
}

func TestAFullStreamHoldsUpNoOtherHoweverMuchWaitsForIt(t *testing.T) {
	t.Parallel()
	o := newMessages(t)
	relay := o.at(o.start("relay"))
	tick := func() { require.Equal(t, 204, relay.tick("relay").status) }
	_, err := o.jetStream().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "MESSAGES", Subjects: []string{"msg.>"}, Discard: jetstream.DiscardNew, MaxMsgs: 1, Duplicates: time.Minute,
	})
	require.NoError(t, err)
	require.NoError(t, ensureStreams(t, o.nats.URL()))
	o.save("msg.orders.paid", once)
	o.save("user:bob")
	waitAllSent(o, tick) // it is full now

	const n = 600 // more than the relay takes at once
	for range n {
		o.save("msg.orders.paid", once)
	}
	bob := o.save("user:bob")
	tick()
	require.Equal(t, "sent", o.state(bob).State, "in the same run")
	require.Equal(t, n, o.looker.count(`select count(*) from message_live l join messages m using (id)
		where send_no = 0 and remaining_sends = max_sends and l.xmin = m.xmin`), "no send was used, and nothing was written")
	require.Contains(t, o.looker.text(`select reason from stream_pauses where stream = 'MESSAGES'`), "has no room")
}

func TestAnotherBodyUnderTheSameIDSwallowsNoMessageThatWasSaved(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	saved, err := w.client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "x", To: "user:bob", Data: api.JSON(`"A"`)})
	require.NoError(t, err)
	require.Equal(t, "saved", saved.Ack)
	hand, err := w.looker.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), `select from message_live for update`) // no relay sends it
	require.NoError(t, err)
	require.Equal(t, saved.ServerMsgID, w.accept("x", `"B"`).ServerMsgID)
	w.trigger(w.at)
	bodies := func() (all []string) {
		for _, m := range w.inbox("bob") {
			all = append(all, string(m.Data))
		}
		return all
	}
	require.Eventually(t, func() bool { return len(bodies()) == 1 }, waitLimit, 10*time.Millisecond)
	require.Equal(t, []string{`"B"`}, bodies(), "delivered before it was found that it cannot be saved")
	require.NoError(t, hand.Commit(t.Context()))

	require.Eventually(t, func() bool { return w.townState(saved.ServerMsgID) == "sent" }, waitLimit, 10*time.Millisecond)
	require.Equal(t, []string{`"B"`, `"A"`}, bodies(), "what is called sent is there")
	require.Eventually(t, func() bool { return len(w.inbox("admin")) == 1 }, waitLimit, 10*time.Millisecond)
	var ack api.LateAck
	require.NoError(t, json.Unmarshal(w.inbox("admin")[0].Data, &ack))
	require.Equal(t, "rejected", ack.AckType)
	require.Equal(t, saved.ServerMsgID, ack.ServerMsgID)
}
