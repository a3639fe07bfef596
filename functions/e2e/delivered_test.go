package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// deliveredAt waits until a message is in a state and has the time of its delivery.
func deliveredAt(w *town, id, state string) time.Time {
	w.t.Helper()
	var m api.MessageResponse
	require.Eventually(w.t, func() bool {
		var err error
		m, err = w.client.Message(w.t.Context(), id)
		return err == nil && m.State == state && m.DeliveredAt != nil
	}, waitLimit, 10*time.Millisecond)
	return *m.DeliveredAt
}

func TestAMessageThatIsDeliveredBeforeItIsSavedSaysWhen(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	hand, err := w.looker.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = hand.Exec(t.Context(), `lock table messages in exclusive mode`) // nothing is saved, and all is read
	require.NoError(t, err)
	began := time.Now()
	w.trigger(w.at)
	id := w.accept("c-1", `1`).ServerMsgID
	at := deliveredAt(w, id, "accepted")
	require.WithinRange(t, at, began, w.inbox("bob")[0].Time)
	require.NoError(t, hand.Commit(t.Context()))
	require.Equal(t, at.Truncate(time.Microsecond), deliveredAt(w, id, "sent"), "and not when it was saved")
	require.Equal(t, 1, w.looker.count(`select count(*) from message_done where id = $1 and delivered_at = $2`, id, at.Truncate(time.Microsecond)))
	require.Len(t, w.inbox("bob"), 1)
}

func TestDeliveryBeforeSavingDoesNotWaitForPostgresToSayWhen(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	w := &town{t: t, nats: newNATS(t), url: proxy.URL(), bin: binary(t)}
	w.env = settings(w.url, "NATS_URL="+w.nats.URL(), "SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true", "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	w.restart()
	w.trigger(w.at)
	deliveredAt(w, w.accept("first", `0`).ServerMsgID, "sent")
	proxy.Stall()
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = w.accept(fmt.Sprint("stalled-", i), `1`).ServerMsgID
	}
	require.Eventually(t, func() bool { return len(w.inbox("bob")) == len(ids)+1 }, waitLimit, 10*time.Millisecond)
	received := time.Now()
	proxy.Resume()
	for _, id := range ids {
		require.False(t, deliveredAt(w, id, "sent").After(received), "Postgres has learned of it later")
	}
}

func TestASubjectThatNobodyStoresHoldsUpNoLaterDeliveryBeforeTheSave(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	silent, err := w.jetStream().Conn().SubscribeSync("ordres.silent") // receives messages and acknowledges none
	require.NoError(t, err)
	require.NoError(t, w.jetStream().Conn().Flush())
	hand, err := w.looker.owner.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = hand.Rollback(context.Background()) }()
	_, err = hand.Exec(t.Context(), `lock table messages in exclusive mode`) // nothing is saved, so only push delivers
	require.NoError(t, err)
	w.trigger(w.at)
	sent := w.looker.post("/api/v1/messages", `{"client_msg_id":"m-1","to":"ordres.silent","data":1,"ack":"accepted"}`)
	require.Equal(t, 202, sent.status, sent.text)
	_, err = silent.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	w.accept("b-1", `1`)
	require.Eventually(t, func() bool { return len(w.inbox("bob")) == 1 }, 10*time.Second, 10*time.Millisecond)
}
