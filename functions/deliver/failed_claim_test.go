package deliver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
)

// blockClaims makes claims of webhooks wait for an advisory lock. waiting returns how many claims wait; fail cancels the waiting
// claim, and lets later claims run.
func blockClaims(t *testing.T, w *cluster.Cluster) (waiting func() int, fail func()) {
	t.Helper()
	tx, err := cluster.NewClient(t, "").Connect(w.DatabaseURL).Owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `select pg_advisory_xact_lock(4711)`)
	require.NoError(t, err)
	w.Admin.Exec(`create function block_claim() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(4711); return new; end $$`)
	w.Admin.Exec(`create trigger block_claim before update of claims on webhook_deliveries for each row execute function block_claim()`)
	const blocked = ` from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`
	return func() int { return w.Admin.Count(`select count(*)` + blocked) }, func() {
		t.Helper()
		require.Equal(t, 1, w.Admin.Count(`select count(pg_cancel_backend(pid))`+blocked))
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestFailedClaimIsRepeated(t *testing.T) {
	t.Parallel()
	for name, messageHangs := range map[string]bool{
		"after a newer wake-up was handled":      false,
		"while a message waits for its receiver": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := cluster.Open(t, "SENDONCE_SAFETY_TICK=15m") // no tick repeats the claim during the test
			webhook, message := cluster.NewReceiver(t, nil), cluster.NewReceiver(t, nil)
			if messageHangs {
				ended := make(chan struct{})
				message.Respond = func(int, http.ResponseWriter, *http.Request) { <-ended }
				t.Cleanup(func() { close(ended) }) // runs before message.Close, which waits for its open requests
			}
			w.AddEndpoint(webhook.URL)
			waiting, fail := blockClaims(t, w)
			w.FinishTask()
			cluster.Eventually(t, func() bool { return waiting() == 1 })
			_, err := w.Client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "m-1", To: message.URL, Type: "order.paid.v1", Data: []byte(`1`)})
			require.NoError(t, err)
			cluster.Eventually(t, func() bool { return message.Calls() == 1 }, "messages do not wait for webhooks")
			if !messageHangs {
				cluster.Eventually(t, func() bool {
					consumer, err := w.JetStream().Consumer(t.Context(), bus.StreamWake, "deliver")
					return err == nil && consumer.CachedInfo().NumPending == 0 && consumer.CachedInfo().NumAckPending == 0
				}, "the newer wake-up was handled")
			}
			require.Zero(t, webhook.Calls())
			failed := time.Now()
			fail()
			cluster.Eventually(t, func() bool { return webhook.Calls() == 1 }, "the webhook is claimed again and posted")
			require.Less(t, time.Since(failed), 5*time.Second)
		})
	}
}

// Only a compromised function can write a message of a caller that does not exist.
func TestMessageOfUnknownCallerBlocksNoOtherMessage(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t)
	shop := cluster.NewReceiver(t, nil)
	insertPosts(w.Admin, 0, shop.URL, 1)
	insertPosts(w.Admin, 4711, shop.URL, 1)
	require.Equal(t, 204, w.Admin.Tick("deliver").Status)
	w.Admin.WaitCount(1, `select count(*) from message_done`)
	require.Equal(t, 1, shop.Calls())
	require.Equal(t, 1, w.Admin.Count(`select count(*) from message_live where caller_id = 4711 and send_no = 0 and next_at > now() + interval '5 seconds'`),
		"it waits for the end of its lease")
}
