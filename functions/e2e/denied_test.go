package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

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
