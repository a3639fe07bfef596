package e2e

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// The trigger alone makes the streams, and the functions of a new system may run
// before it: what they have answered 2xx is published once it runs, and what they
// cannot do yet they answer 503.
func TestFunctionsThatStartBeforeTheTriggerLoseNothing(t *testing.T) {
	t.Parallel()
	o := newCluster(t)
	o.env = append(o.env, "TWO_PHASE_ENABLED=true", allowLoopback)
	at := o.start("")
	s, strict := o.at(at).connect(o.url), o.at(o.start("messages", "TWO_PHASE_FAIL_OPEN=false"))
	bob, shop := s.caller("bob", "receiver"), newReceiver(t, nil)
	addEndpoint(s, `{"url":"`+shop.URL+`"}`)
	later := func(r reply) {
		t.Helper()
		require.Equal(t, 503, r.status, r.text)
		require.NotEmpty(t, r.header.Get("Retry-After"))
	}
	submit := func(s *server, key, to, ack string) reply {
		return s.post(post, `{"client_msg_id":"`+key+`","to":"`+to+`","data":1,"confirm":false,"ack":"`+ack+`"}`)
	}
	require.Equal(t, 200, submit(s, "1", "user:bob", "saved").status)
	require.Equal(t, 200, submit(s, "2", "msg.orders.paid", "saved").status)
	instead := submit(s, "3", "user:bob", "accepted")
	require.Equal(t, 200, instead.status, instead.text)
	require.Equal(t, "saved", instead.data("ack"))
	later(submit(strict, "4", "user:bob", "accepted"))
	later(bob.get(streams + "bob"))
	later(s.tick("save"))
	task := submitTask(s)
	require.Equal(t, 200, s.post("/api/v1/sms/task/"+task+"/cancel", `{}`).status)
	for range 2 {
		require.Equal(t, 204, s.tick("relay").status)
		require.Equal(t, 204, s.tick("sweep").status)
		require.Equal(t, 204, s.tick("deliver").status)
	}
	require.Equal(t, 3, s.count(`select count(*) from message_live where remaining_sends = 5`), "no send is used up")
	require.Equal(t, 1, s.count(`select count(*) from event_outbox`))
	_, err := o.jetStream().Stream(t.Context(), "USERS")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)

	s.exec(`update stream_pauses set until = now()`) // a minute at most
	o.trigger(at)
	require.Eventually(t, func() bool { return submit(strict, "4", "user:bob", "accepted").status == 202 }, waitLimit, 10*time.Millisecond)
	heard := listen(bob, streams+"bob?after=0")
	for _, key := range []string{"1", "3", "4"} {
		require.Equal(t, s.get(post+"/by-key/"+key).data("server_msg_id"), heard.told())
	}
	require.Eventually(t, func() bool { return s.count(`select count(*) from message_live`) == 0 && shop.got() == 1 }, waitLimit, 10*time.Millisecond)
}
