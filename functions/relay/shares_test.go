package relay_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// One submitter has far more waiting than the relay takes at once. The messages of
// another go on as if it were alone.
func TestFloodOfOneCallerDelaysNoOther(t *testing.T) {
	t.Parallel()
	o := cluster.New(t)
	o.StartAll("SENDONCE_CALLER_WAITING_MB=0", "SENDONCE_CALLER_WAITING_MESSAGES=0")
	s := o.Admin
	modest := s.NewCaller("modest", "submitter")
	first := cluster.SendTo(modest, 0, "user:bob", "x").Data("server_msg_id").(string)
	o.WaitMessage(first, "sent")
	const flood = 30_000
	o.Admin.Exec(`set session_replication_role = replica`)
	o.Admin.Exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 999, 'greedy', g::text, 2, 'zoe' || g % 10000, 'x', '1', false, 1, 1 from generate_series(1, $1) g
			returning id
		)
		insert into message_live (id, caller_id, kind, stream, remaining_sends) select id, 999, 2, 'USERS', 1 from m`, flood)
	var took []time.Duration
	for n := range 10 {
		began := time.Now()
		sent := cluster.SendTo(modest, n+1, "user:bob", "x")
		require.Equal(t, 200, sent.Status)
		o.WaitMessage(sent.Data("server_msg_id").(string), "sent")
		took = append(took, time.Since(began))
	}
	left := o.Admin.Count(`select count(*) from message_live where caller_id = 999`)
	slices.Sort(took)
	t.Logf("10 messages beside %d of another caller: median %v, slowest %v; %d of the others still wait",
		flood, took[5].Round(time.Millisecond), took[9].Round(time.Millisecond), left)
	require.Positive(t, left, "else it was no flood")
}

// A caller that sends thousands of messages to subjects which NATS does not permit
// holds up nobody: those of a neighbour leave with the next call of the relay.
func TestDeniedMessagesDelayNoOthers(t *testing.T) {
	t.Parallel()
	url, nats := sandbox.NewDatabase(t), cluster.NATSThatMayDeny(t, sandbox.NATSOptions{Dir: t.TempDir()}, bus.StreamAccepted)
	require.NoError(t, cluster.EnsureStreams(t, nats.URL()))
	_, h := cluster.NewEnv(t, url, func(c *settings.Config) { c.Bus.URL, c.Bus.Replicas = cluster.NATSURL(t, nats.URL(), "relay"), 1 })
	s := cluster.ServeHandler(t, h).Connect(url)
	s.Exec(`with m as (
			insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
			select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 7, 'mal', gen_random_uuid(), 0,
				case when n < 2000 then 'zz.same' else 'zz.' || n end, 't', '1', false, 1, 1
			from generate_series(1, 4100) n returning id)
		insert into message_live (id, kind, caller_id, stream, remaining_sends) select id, 0, 7, 'other-1', 1 from m`)
	require.Equal(t, 204, s.Tick("relay").Status)
	require.Zero(t, s.Count(`select count(*) from message_live where caller_id = 7 and remaining_sends > 0`), "each is refused")
	for _, to := range []string{"msg.orders.paid", "user:bob"} {
		sent := s.Post("/api/v1/messages", `{"client_msg_id":"`+api.NewKey()+`","to":"`+to+`","data":1,"confirm":false}`)
		require.Equal(t, 200, sent.Status, sent.Text)
	}
	require.Equal(t, 204, s.Tick("relay").Status)
	require.Zero(t, s.Count(`select count(*) from message_live where caller_id <> 7`), "the neighbour's are sent")
	require.Zero(t, s.Count(`select count(*) from stream_pauses`))
}
