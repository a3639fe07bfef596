package sweep_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// fillStream publishes messages of size bytes to a stream directly, so that no quota applies.
func fillStream(o *cluster.Cluster, subject string, messages, size int) {
	o.T.Helper()
	js := o.JetStream()
	for range messages {
		_, err := js.Publish(o.T.Context(), subject, make([]byte, size))
		require.NoError(o.T, err)
	}
}

// makeTrimDue makes the next call of deliver check the streams for alerts and trim them.
func makeTrimDue(o *cluster.Cluster) {
	o.Admin.Exec(`update upkeep set begun_at = '-infinity' where what = 'events'`)
}

func TestNearlyFullStreamRaisesAnAlert(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_STREAM_USERS_MB=4") // also read by the process trigger, which creates the stream
	o.StartAll()
	s := o.Admin
	ops := cluster.NewReceiver(t, nil)
	_, secret := cluster.RegisterEndpoint(s, fmt.Sprintf(`{"url":%q,"events":["alert.raised","alert.cleared"]}`, ops.URL))
	o.WaitMessage(o.Save("user:bob"), "sent") // now the stream exists
	alerts := func() []any { return s.Get("/api/v1/admin/alerts").Data("items").([]any) }

	const large = 200_000
	fillStream(o, "inbox.zoe", 10, large)
	makeTrimDue(o)
	require.Equal(t, 204, s.Tick("deliver").Status)
	require.Empty(t, alerts(), "a stream that is half full raises no alert")

	// This time the test does not call deliver: relay wakes deliver when the full stream does not accept a message.
	fillStream(o, "inbox.zoe", 10, large)
	fillStream(o, "inbox.zoe", 1, 150_000)
	makeTrimDue(o)
	waiting := o.Save("user:bob", func(r *api.MessageRequest) { r.Data = []byte(`"` + strings.Repeat("x", 60_000) + `"`) })
	raised, data := ops.AlertEvent(t, 1, secret)
	require.Equal(t, "sendonce.alert.raised.v1", raised.Type)
	require.InDelta(t, 0.99, data.Value, 0.01)
	require.Equal(t, api.AlertEventData{
		AlertID: raised.Subject, Kind: "stream_full", Queue: "USERS", Value: data.Value, Threshold: 0.8, Since: data.Since,
	}, data)
	require.Len(t, alerts(), 1)
	require.Equal(t, []any{raised.Subject, "stream_full", "USERS"}, []any{
		alerts()[0].(map[string]any)["id"], alerts()[0].(map[string]any)["kind"], alerts()[0].(map[string]any)["queue"]})
	o.WaitMessage(o.Save("msg.orders.paid", cluster.WithoutConfirm), "sent") // other streams are not affected

	// A deliver without NATS changes nothing and does not fail.
	withoutNATS := o.At(o.Start("deliver", "NATS_URL=nats://127.0.0.1:1"))
	for range 2 {
		makeTrimDue(o)
		require.Equal(t, 204, withoutNATS.Tick("deliver").Status)
	}
	require.NotContains(t, alerts()[0], "cleared_at")

	users, err := o.JetStream().Stream(t.Context(), "USERS")
	require.NoError(t, err)
	require.NoError(t, users.Purge(t.Context()))
	makeTrimDue(o)
	require.Equal(t, 204, s.Tick("deliver").Status)
	cleared, data := ops.AlertEvent(t, 2, secret)
	require.Equal(t, "sendonce.alert.cleared.v1", cleared.Type)
	require.Equal(t, raised.Subject, cleared.Subject)
	require.NotNil(t, data.ClearedAt)
	require.Less(t, data.Value, 0.1)
	require.Equal(t, "USERS", data.Queue)
	o.WaitMessage(waiting, "sent")
	require.Len(t, alerts(), 1)
	require.Equal(t, 2, ops.Calls())
}

// While an alert is open, deliver checks the streams every minute, also without other wake-ups.
func TestOpenStreamAlertIsCheckedEveryMinute(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.Env = append(o.Env, "SENDONCE_STREAM_DEADLETTERS_MB=1")
	o.StartAll()
	s := o.Admin
	o.WaitMessage(o.Save("user:bob"), "sent")
	fillStream(o, "dlq.x", 9, 100_000)
	makeTrimDue(o)
	require.Equal(t, 204, s.Tick("deliver").Status)
	require.Equal(t, 1, o.Admin.Count(`select count(*) from alerts where cleared_at is null`))
	wake, err := o.JetStream().Stream(t.Context(), "WAKE")
	require.NoError(t, err)
	cluster.Eventually(t, func() bool {
		info, err := wake.Info(t.Context(), jetstream.WithSubjectFilter("sched.deliver.>"))
		require.NoError(t, err)
		for subject := range info.State.Subjects {
			due, err := strconv.ParseInt(subject[strings.LastIndexByte(subject, '.')+1:], 10, 64)
			if ahead := time.Until(time.Unix(due, 0)); err == nil && ahead > 50*time.Second && ahead < 80*time.Second {
				return true
			}
		}
		return false
	}, "a wake-up of deliver is scheduled for a minute later")
	dead, err := o.JetStream().Stream(t.Context(), "DEADLETTERS")
	require.NoError(t, err)
	require.NoError(t, dead.Purge(t.Context()))
	require.Equal(t, 204, s.Tick("deliver").Status)
	require.Equal(t, 1, o.Admin.Count(`select count(*) from alerts where cleared_at is null`), "the streams are not checked before the minute is over")
	o.Admin.Exec(`update upkeep set begun_at = begun_at - interval '61 s' where what = 'events'`)
	require.Equal(t, 204, s.Tick("deliver").Status)
	require.Zero(t, o.Admin.Count(`select count(*) from alerts where cleared_at is null`))
}
