package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestTriggerNamesBrokenRouteAndServesOthers(t *testing.T) {
	t.Parallel()
	first := startProbed(t)
	first.waitReadiness(200)
	_, err := first.process.Terminate(cluster.WaitLimit)
	require.NoError(t, err)

	p := startProbed(t, func(p *probedTrigger) {
		p.natsDir, p.accepted = first.natsDir, "OTHER"
		p.env = []string{"TWO_PHASE_STREAM=OTHER", "SENDONCE_STREAM_EVENTS_MB=1048576"}
		require.NoError(t, first.nats.Stop())
	})
	for _, f := range eventFunctions {
		p.waitMetric("trigger_delivered_total"+labels(f), 1)
	}
	p.waitMetric(`trigger_route_stopped{durable="save-1-of-1",function="save",reason="subjects_taken"}`, 1)
	p.waitMetric(`trigger_stream_missing{reason="subjects_taken",stream="OTHER"}`, 1)
	var health struct{ Status string }
	require.NoError(t, json.Unmarshal([]byte(p.waitReadiness(503).Text), &health))
	require.True(t, strings.HasPrefix(health.Status, "these routes do not run: save-1-of-1 (stream OTHER cannot be created: "), health.Status)
	require.Contains(t, health.Status, "run 'sendonce drain' until it says 0, then 'nats stream rm ACCEPTED'")
	require.InDelta(t, 1, p.metric(`trigger_pulling{durable="record",function="deliver"}`), 0, "the stream EVENTS cannot grow, but is used as it is")
	require.Contains(t, p.process.Output(), "EVENTS: max_bytes is 134217728, wanted 1099511627776 (NATS refused the change: nats: API error: code=500 err_code=10047")
}

// An event that no function can decode becomes a dead letter. If the stream of dead letters is full, the dead letter is
// stored in Postgres instead. The messages after the event are saved.
func TestFullDeadLetterStreamStopsNoShard(t *testing.T) {
	t.Parallel()
	c := cluster.OpenTwoPhase(t, "TWO_PHASE_BATCH_SIZE=1", "SENDONCE_STREAM_DEADLETTERS_MB=1")
	js := c.JetStream()
	fill := func(size int) {
		for {
			if _, err := js.Publish(t.Context(), "dlq.test", make([]byte, size), jetstream.WithRetryAttempts(0)); err != nil {
				var refused *jetstream.APIError
				if require.ErrorAs(t, err, &refused); refused.ErrorCode == 10077 { // the stream cannot store the message
					return
				}
			}
		}
	}
	c.StartTrigger(c.Client.BaseURL)
	cluster.Eventually(t, func() bool { _, err := js.Stream(t.Context(), "DEADLETTERS"); return err == nil })
	fill(100_000)
	fill(1)
	before := c.Accept("c-1", `"one"`)
	poison := nats.NewMsg("acc.0.poison")
	poison.Header.Set("ce-specversion", "1.0") // the other attributes are missing
	poison.Data = []byte("poison")
	_, err := js.PublishMsg(t.Context(), poison)
	require.NoError(t, err)
	after := c.Accept("c-2", `"two"`)
	for _, id := range []string{before.ServerMsgID, after.ServerMsgID} {
		cluster.Eventually(t, func() bool { return c.Message(id).State != "accepted" })
	}
	require.Equal(t, 1, c.Admin.Count(`select count(*) from dead_letters where function = 'save' and event = 'poison' and dead`))
}

// If the clock of NATS is ahead, a wake-up is published before the tasks or messages are due, and its schedule is gone.
// The function that is woken must publish another schedule.
func TestEarlyWakeUpIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := cluster.ServeOn(t, c.DatabaseURL, cluster.WithNATS(t, c.NATS.URL()))
	require.NoError(t, cluster.EnsureStreams(t, c.NATS.URL()))
	wake, err := c.JetStream().Stream(t.Context(), "WAKE")
	require.NoError(t, err)
	scheduled := func(function string) func() bool {
		return func() bool {
			info, err := wake.Info(t.Context(), jetstream.WithSubjectFilter("sched."+function+".>"))
			require.NoError(t, err)
			return len(info.State.Subjects) > 0
		}
	}
	s.ScheduleInAnHour("default")
	for id, to := range map[string]string{"a": "msg.orders.paid", "b": "https://shop.example/hook"} {
		s.Post(cluster.MessagesPath, `{"client_msg_id":"`+id+`","to":"`+to+`","data":1}`).RequireOK()
	}
	s.Exec(`update task_live set due_at = now() + interval '20 seconds'`)
	s.Exec(`update message_live set next_at = now() + interval '20 seconds'`)
	for _, function := range []string{"sweep", "relay", "deliver"} {
		for range 3 { // also if this process has just published the same schedule
			require.Equal(t, 204, s.Tick(function).Status)
			cluster.Eventually(t, scheduled(function), function)
			require.NoError(t, wake.Purge(t.Context()))
		}
	}
}
