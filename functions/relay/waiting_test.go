package relay_test

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
)

// waitingMessages returns how many messages wait in the test, from SENDONCE_WAITING_MESSAGES. Without
// this variable the test is skipped; TestFullStreamPausesAsAWhole of shared/store/events tests the same
// with few messages.
func waitingMessages(t *testing.T) (n int) {
	t.Helper()
	text := os.Getenv("SENDONCE_WAITING_MESSAGES")
	if text == "" {
		t.Skip("make faults runs it")
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "SENDONCE_WAITING_MESSAGES")
	return n
}

// rowUpdates returns the number of row updates in this database so far.
func rowUpdates(s *cluster.Client) int {
	s.T.Helper()
	return s.Count(`select coalesce(sum(n_tup_upd), 0) from pg_stat_user_tables`)
}

// medianSendTime submits messages to a user during d, one after the other. It returns the median time from the response
// until the message is sent.
func medianSendTime(o *cluster.Cluster, d time.Duration) time.Duration {
	o.T.Helper()
	var took []time.Duration
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for end := time.Now().Add(d); len(took) < 10 || time.Now().Before(end); {
		<-pace.C
		id, began := o.Save("user:bob"), time.Now()
		require.Eventually(o.T, func() bool { return o.Admin.Count(`select count(*) from message_done where id = $1`, id) == 1 }, cluster.WaitLimit, 500*time.Microsecond)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// Messages that wait for a full stream must not delay messages to another stream, and the rows of waiting messages must not be updated.
func TestFullStreamWithManyWaitingMessagesIsCheap(t *testing.T) {
	t.Parallel()
	n := waitingMessages(t)
	const busyTime = 30 * time.Second
	o := cluster.OpenMessages(t)
	limits := createLimited(o, "MESSAGES", "msg.>", 1)
	o.StartRelay()
	o.WaitMessage(o.Save("msg.orders.paid", cluster.WithoutConfirm), "sent") // the stream is full now
	o.WaitMessage(o.Save("user:bob"), "sent")
	idle := medianSendTime(o, busyTime/3)
	cluster.InsertWaiting(o.Admin, n)
	o.Save("msg.orders.paid", cluster.WithoutConfirm) // wakes the relay
	o.Admin.WaitCount(1, `select count(*) from stream_pauses`)
	before, began := rowUpdates(o.Admin), time.Now()
	busy := medianSendTime(o, busyTime)
	updates := float64(rowUpdates(o.Admin)-before) / time.Since(began).Seconds()
	t.Logf("a message to another stream is sent after %v, and after %v while %d messages wait for a full one; %.1f updates/s",
		idle.Round(10*time.Microsecond), busy.Round(10*time.Microsecond), n, updates)
	require.Zero(t, o.Admin.Count(`select count(*) from message_live l join messages m using (id) where l.xmin <> m.xmin`), "no row of a waiting message was updated")
	require.Less(t, updates, 500.0)
	require.Less(t, busy, 2*idle)

	removeLimit(o, limits)
	began = time.Now()
	o.Admin.Exec(`update stream_pauses set until = now()`)
	_, err := o.JetStream().Publish(t.Context(), bus.WakeRelay, []byte("1"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return o.Admin.Count(`select count(*) from (select from message_live limit 1) l`) == 0 }, 5*cluster.WaitLimit, 20*time.Millisecond)
	took := time.Since(began)
	t.Logf("all %d were sent within %v after the limit was removed, %.0f/s", n, took.Round(10*time.Millisecond), float64(n)/took.Seconds())
	require.Equal(t, n+2, o.MessagesIn("MESSAGES"))
}
