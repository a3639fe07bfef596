package e2e

import (
	"encoding/json"
	"testing"

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
