package deliver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

// waitDelivered waits until a message is in this state and has the time of its delivery, and returns the time.
func waitDelivered(w *cluster.Cluster, id, state string) time.Time {
	w.T.Helper()
	var m api.MessageResponse
	cluster.Eventually(w.T, func() bool {
		var err error
		m, err = w.Client.Message(w.T.Context(), id)
		return err == nil && m.State == state && m.DeliveredAt != nil
	})
	return *m.DeliveredAt
}

func TestMessageDeliveredBeforeSavedKeepsDeliveryTime(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	release := w.Admin.BlockSaving()
	began := time.Now()
	w.StartTrigger(w.Client.BaseURL)
	id := w.Accept("c-1", `1`).ServerMsgID
	at := waitDelivered(w, id, "accepted")
	require.WithinRange(t, at, began, w.Inbox("bob")[0].Time)
	release()
	require.Equal(t, at.Truncate(time.Microsecond), waitDelivered(w, id, "sent"), "the time of the delivery, not of the saving")
	require.Equal(t, 1, w.Admin.Count(`select count(*) from message_done where id = $1 and delivered_at = $2`, id, at.Truncate(time.Microsecond)))
	require.Len(t, w.Inbox("bob"), 1)
}

// One batch can have delivery times and events of many callers.
func TestDeliveredEventThatCannotBeRecordedDelaysNoWebhooks(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	w.AddEndpoint(cluster.NewReceiver(t, nil).URL)
	id := w.Submit()
	storetest.HoldLock(t, storetest.ConnectAsOwner(t, w.DatabaseURL), `lock table accepted_messages`)
	event := func(kind, data string) string {
		return fmt.Sprintf(`{"id":"%s","type":"sendonce.%s.v1","subject":"%s","time":"2026-01-02T03:04:05Z","data":%s}`, kind, kind, id, data)
	}
	delivered := event("message.delivered", `{"delivered_at":"`+time.Now().UTC().Format(time.RFC3339)+`","messages":[{"server_msg_id":"`+id+`","fp":"`+strings.Repeat("00", 16)+`"}]}`)
	response := w.Admin.Do("POST", "/events/deliver", "["+delivered+","+event("task.failed", "{}")+"]", "Content-Type", "application/cloudevents-batch+json")
	require.Equal(t, 503, response.Status, response.Text)
	require.Equal(t, 1, w.Admin.Count(`select count(*) from webhook_deliveries where event_id = 'task.failed'`))
}

func TestDeliveryBeforeSavingDoesNotWaitForPostgres(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	w := cluster.NewOn(t, proxy.URL(), "SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true", "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	w.StartAll()
	waitDelivered(w, w.Accept("first", `0`).ServerMsgID, "sent")
	proxy.Stall()
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = w.Accept(fmt.Sprint("stalled-", i), `1`).ServerMsgID
	}
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == len(ids)+1 })
	w.Accept("last", `1`) // when it is delivered, the times of the earlier messages are published
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == len(ids)+2 })
	resumed := time.Now()
	proxy.Resume()
	for _, id := range ids {
		require.False(t, waitDelivered(w, id, "sent").After(resumed), "the time is from before Postgres was reachable again")
	}
}

func TestSubjectWithoutStreamBlocksNoLaterDelivery(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	silent, err := w.JetStream().Conn().SubscribeSync("ordres.silent") // receives messages and acknowledges none
	require.NoError(t, err)
	require.NoError(t, w.JetStream().Conn().Flush())
	release := w.Admin.BlockSaving() // so that only push delivers
	defer release()
	w.StartTrigger(w.Client.BaseURL)
	sent := w.Admin.Post("/api/v1/messages", `{"client_msg_id":"m-1","to":"ordres.silent","data":1,"ack":"accepted"}`)
	require.Equal(t, 202, sent.Status, sent.Text)
	_, err = silent.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	w.Accept("b-1", `1`)
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == 1 })
}

func TestFullSubjectDelaysNoLaterDelivery(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	_, err := w.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "SMALL", Subjects: []string{"ordres.full"}, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 1,
	})
	require.NoError(t, err)
	_, err = w.JetStream().Publish(t.Context(), "ordres.full", nil)
	require.NoError(t, err)
	release := w.Admin.BlockSaving() // so that only push delivers
	defer release()
	w.StartTrigger(w.Client.BaseURL)
	sent := w.Admin.Post("/api/v1/messages", `{"client_msg_id":"m-1","to":"ordres.full","data":1,"ack":"accepted"}`)
	require.Equal(t, 202, sent.Status, sent.Text)
	w.Accept("b-1", `1`)
	cluster.Eventually(t, func() bool { return len(w.Inbox("bob")) == 1 })
	require.NotContains(t, w.Process(cluster.All).Output(), "NATS is unavailable", "the batch is not repeated")
}
