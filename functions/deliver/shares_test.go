package deliver_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// insertPosts inserts n messages of a caller that are due to be posted to a URL.
func insertPosts(s *cluster.Client, caller int, url string, n int) {
	s.T.Helper()
	s.Exec(`with m as (
			insert into messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), $1, 'x', gen_random_uuid(), gen_random_uuid(), 1, $2, 't', '1', false, 5, 1
			from generate_series(1, $3) returning id, caller_id)
		insert into message_live (id, caller_id, kind, destination_key, remaining_sends) select id, caller_id, 1, caller_id || ' ' || substr($2, 8), 5 from m`, caller, url, n)
}

// deliver trims the streams first. So they are trimmed even if webhooks or messages are always due.
func TestStreamsAreTrimmedBeforePosting(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	c.StartWithoutTrigger()
	c.EnsureStreams()
	hang := make(chan struct{})
	slow := cluster.NewReceiver(t, func(int, http.ResponseWriter, *http.Request) { <-hang })
	insertPosts(c.Admin, 0, slow.URL, 1)
	status := make(chan int)
	go func() { status <- c.Admin.Tick("deliver").Status }()
	cluster.Eventually(t, func() bool { return slow.Calls() == 1 })
	trimmed := c.Admin.Count(`select count(*) from upkeep where what = 'events' and begun_at > now() - interval '1 minute'`)
	close(hang)
	require.Equal(t, 204, cluster.Within(t, cluster.WaitLimit, status, "the response of deliver"))
	require.Equal(t, 1, trimmed, "while deliver waited for the receiver")
}

func TestSlowReceiversDoNotDelayOtherCallers(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, "SENDONCE_WEBHOOK_TIMEOUT=20s")
	mallory := w.Admin.NewCaller("mallory", "submitter")
	hang := make(chan struct{})
	slow := func(int, http.ResponseWriter, *http.Request) { <-hang } // no call ends during the test, so no endpoint counts as failing
	endpoint, hosts := cluster.NewReceiver(t, slow), make([]*cluster.Receiver, 9)
	for i := range hosts {
		hosts[i] = cluster.NewReceiver(t, slow)
		mallory.Post(cluster.EndpointsPath, fmt.Sprintf(`{"url":"%s/%d"}`, endpoint.URL, i)).RequireOK()
		insertPosts(w.Admin, w.Admin.Count(`select id from callers where name = 'mallory'`), hosts[i].URL, 20)
	}
	t.Cleanup(func() { close(hang) }) // before Close of the receivers, which waits until their calls have ended
	w.Admin.Exec(`with e as (insert into webhook_events (id, payload) select n::text, '{}' from generate_series(1, 20) n returning id)
		insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url)
		select gen_random_uuid(), e.id, w.id, w.caller_id, 'x', w.id, w.url from webhook_endpoints w, e where w.url is not null`)
	inFlight := func() (webhooks, messages int) {
		for _, host := range hosts {
			messages += host.Calls()
		}
		return endpoint.Calls(), messages
	}
	cluster.Eventually(t, func() bool {
		webhooks, messages := inFlight()
		return webhooks >= 32 && messages >= 32
	})

	fast := cluster.NewReceiver(t, nil)
	w.AddEndpoint(fast.URL)
	w.FinishTask()
	_, err := w.Client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "order-1", To: fast.URL, Type: "order.paid.v1", Data: []byte(`1`)})
	require.NoError(t, err)
	cluster.Eventually(t, func() bool { return fast.Calls() == 2 })
	webhooks, messages := inFlight()
	require.Equal(t, 32, webhooks, "a quarter of all concurrent posts; none of them has ended")
	require.Equal(t, 32, messages)
}
