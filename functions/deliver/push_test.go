package deliver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// unpushed returns how many accepted messages deliver has not handled.
func unpushed(w *cluster.Cluster) (n int) {
	w.T.Helper()
	stream, err := w.JetStream().Stream(w.T.Context(), "ACCEPTED")
	require.NoError(w.T, err)
	consumers := stream.ListConsumers(w.T.Context())
	for c := range consumers.Info() {
		if strings.HasPrefix(c.Name, "deliver-") {
			n += int(c.NumPending) + c.NumAckPending
		}
	}
	require.NoError(w.T, consumers.Err())
	return n
}

// A caller that fills the stream of inboxes with accepted messages leaves room for the messages of others, which are delivered
// although nothing is saved.
func TestDeliveryBeforeSavingLeavesRoomForOtherCallers(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true", "SENDONCE_STREAM_USERS_MB=24")
	w.Admin.BlockSaving()
	w.StartTrigger(w.Client.BaseURL)
	flood := w.Admin.NewCaller("flood", "submitter")
	accept := func(i, size int) {
		sent := flood.Post("/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"%d","to":"user:u%d","data":"%s","ack":"accepted"}`, i, i, strings.Repeat("x", size)))
		require.Equal(t, 202, sent.Status, sent.Text)
	}
	for range 22 { // 21 of 25 MB
		_, err := w.JetStream().Publish(t.Context(), "inbox.ann", make([]byte, 950_000))
		require.NoError(t, err)
	}
	for i := range 80 { // 5 MB
		accept(i, 60_000)
	}
	for i := range 150 { // use up the room that is too small for the messages above
		accept(80+i, 0)
	}
	cluster.Eventually(t, func() bool { return unpushed(w) == 0 })
	w.Accept("small", `1`)
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == 1 })
}
