package relay_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// A caller with more messages than the stream can hold leaves room for the messages of others.
func TestCallerWithTooManyMessagesDelaysNoOthers(t *testing.T) {
	t.Parallel()
	for stream, to := range map[string]struct {
		kind        int
		destination string
	}{"USERS": {2, "user:bob"}, "MESSAGES": {0, "msg.orders.paid"}} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			o := cluster.New(t, "SENDONCE_STREAM_"+stream+"_MB=32")
			c := o.StartEach()
			c.Admin.Exec(`with m as (
					insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
					select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 7, 'flood', g::text, $1::integer, case $1 when 2 then 'user' || g else 'msg.flood' end,
						'x', '"' || repeat('x', 60000) || '"', false, 5, 1 from generate_series(1, 700) g returning id
				)
				insert into message_live (id, kind, caller_id, stream, remaining_sends, bytes) select id, $1, 7, $2, 5, 60000 from m`, to.kind, stream)
			waiting := func() int { return c.Admin.Count(`select count(*) from message_live where caller_id = 7`) }
			relay := c.Process("relay")
			for waiting() > 0 && !strings.Contains(relay.Output(), "a stream is nearly full") {
				c.WaitMessage(c.Save(to.destination, cluster.WithoutConfirm), "sent")
			}
			for range 20 {
				c.WaitMessage(c.Save(to.destination, cluster.WithoutConfirm), "sent")
			}
			require.Positive(t, waiting())
			require.NotContains(t, relay.Output(), "stream paused", "the stream never became full")
		})
	}
}
