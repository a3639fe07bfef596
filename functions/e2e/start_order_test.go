package e2e

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/task"
)

// Only the trigger makes the streams, but the functions of a new system may run before the trigger. Everything that
// they accept with 2xx is published when the trigger runs. To a call that needs a stream, they respond with 503.
func TestFunctionsStartedBeforeTriggerLoseNothing(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	c.Env = append(c.Env, "TWO_PHASE_ENABLED=true")
	at := c.Start("")
	s, strict := c.At(at).Connect(c.DatabaseURL), c.At(c.Start("messages", "TWO_PHASE_FAIL_OPEN=false"))
	bob, shop := s.NewCaller("bob", "receiver"), cluster.NewReceiver(t, nil)
	cluster.RegisterEndpoint(s, `{"url":"`+shop.URL+`"}`)
	requireRefused := func(r cluster.Reply) {
		t.Helper()
		require.Equal(t, 503, r.Status, r.Text)
		require.NotEmpty(t, r.Header.Get("Retry-After"))
	}
	submit := func(s *cluster.Client, key, to, ack string) cluster.Reply {
		return s.Post(cluster.MessagesPath, `{"client_msg_id":"`+key+`","to":"`+to+`","data":1,"confirm":false,"ack":"`+ack+`"}`)
	}
	require.Equal(t, 200, submit(s, "1", "user:bob", "saved").Status)
	require.Equal(t, 200, submit(s, "2", "msg.orders.paid", "saved").Status)
	saved := submit(s, "3", "user:bob", "accepted").RequireOK()
	require.Equal(t, "saved", saved.Data("ack"))
	requireRefused(submit(strict, "4", "user:bob", "accepted"))
	requireRefused(bob.Get(cluster.StreamsPath + "bob"))
	requireRefused(s.Tick("save"))
	id := s.SubmitTo(task.DefaultQueue)
	s.Post("/api/v1/sms/task/"+id+"/cancel", `{}`).RequireOK()
	for range 2 {
		require.Equal(t, 204, s.Tick("relay").Status)
		require.Equal(t, 204, s.Tick("sweep").Status)
		require.Equal(t, 204, s.Tick("deliver").Status)
	}
	require.Equal(t, 3, s.Count(`select count(*) from message_live where remaining_sends = 5`), "no send is used up")
	require.Equal(t, 1, s.Count(`select count(*) from event_outbox`))
	_, err := c.JetStream().Stream(t.Context(), "USERS")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)

	s.Exec(`update stream_pauses set until = now()`) // otherwise a pause may last a minute more
	c.StartTrigger(at)
	cluster.Eventually(t, func() bool { return submit(strict, "4", "user:bob", "accepted").Status == 202 })
	received := cluster.OpenStream(bob, cluster.StreamsPath+"bob?after=0")
	for _, key := range []string{"1", "3", "4"} {
		require.Equal(t, s.Get(cluster.MessagesPath+"/by-key/"+key).Data("server_msg_id"), received.NextMessage())
	}
	cluster.Eventually(t, func() bool { return s.Count(`select count(*) from message_live`) == 0 && shop.Calls() == 1 })
}
