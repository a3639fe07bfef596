package deliver_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

func TestSlowReceiversDoNotDelayOtherCallers(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, cluster.AllowLoopback, "SENDONCE_WEBHOOK_TIMEOUT=20s")
	mallory := w.Admin.NewCaller("mallory", "submitter")
	hang := make(chan struct{})
	slow := func(int, http.ResponseWriter, *http.Request) { <-hang } // and then 2xx: it never fails
	endpoint, hosts := cluster.NewReceiver(t, slow), make([]*cluster.Receiver, 9)
	for i := range hosts {
		hosts[i] = cluster.NewReceiver(t, slow)
		require.Equal(t, 200, mallory.Post(cluster.EndpointsPath, fmt.Sprintf(`{"url":"%s/%d"}`, endpoint.URL, i)).Status)
		w.Admin.Exec(`with m as (
				insert into messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts)
				select gen_random_uuid(), gen_random_uuid(), c.id, 'mallory', gen_random_uuid(), gen_random_uuid(), 1, $1, 't', '1', false, 5, 1
				from callers c, generate_series(1, 20) where name = 'mallory' returning id, caller_id)
			insert into message_live (id, caller_id, kind, destination_key, remaining_sends) select id, caller_id, 1, caller_id || ' ' || substr($1, 8), 5 from m`, hosts[i].URL)
	}
	t.Cleanup(func() { close(hang) }) // before the servers wait for their calls
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

	well := cluster.NewReceiver(t, nil)
	w.AddEndpoint(well.URL)
	w.FinishTask()
	_, err := w.Client.SubmitMessage(t.Context(), api.MessageRequest{ClientMsgID: "order-1", To: well.URL, Type: "order.paid.v1", Data: []byte(`1`)})
	require.NoError(t, err)
	cluster.Eventually(t, func() bool { return well.Calls() == 2 })
	webhooks, messages := inFlight()
	require.Equal(t, 32, webhooks, "a quarter of the places, and none of these calls has ended")
	require.Equal(t, 32, messages)
}

// What one caller has waiting for the stream of events, and for being recorded, keeps
// no other one waiting, and is more than the stream has room for at a time.
func TestManyEventsDoNotDelayOtherCallers(t *testing.T) {
	t.Parallel()
	w := cluster.Open(t, cluster.AllowLoopback, "SENDONCE_STREAM_EVENTS_MB=4")
	mallory := w.Admin.NewCaller("mallory", "submitter")
	require.Equal(t, 200, mallory.Post(cluster.EndpointsPath, `{"url":"http://127.0.0.1:1/"}`).Status)
	well := cluster.NewReceiver(t, nil)
	w.AddEndpoint(well.URL)
	const flood = 3000
	w.Admin.Exec(`with t as (
			insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, metadata)
			select gen_random_uuid(), c.id, 'default', 5, 3, 0, '13800138000', 'x', jsonb_build_object('m', repeat('x', 1000))
			from callers c, generate_series(1, $1) where name = 'mallory' returning id, caller_id
		), f as (
			insert into event_outbox (kind, caller_id, ids)
			select 'task.failed', caller_id, array_agg(id) from (select *, row_number() over () / 500 as n from t) t group by caller_id, n
		), v as (
			insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
			values (gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x') returning id
		)
		insert into event_outbox (kind, ids) select 'task.failed', array[id] from v`, flood)
	cluster.Eventually(t, func() bool { return well.Calls() == 1 })
	cluster.Eventually(t, func() bool { return w.Admin.Count(`select count(*) from webhook_deliveries`) == flood+1 })
	ahead := w.Admin.Count(`select count(*) from webhook_deliveries where id < (select id from webhook_deliveries where caller_id = 0)`)
	require.Less(t, ahead, 500)
}
