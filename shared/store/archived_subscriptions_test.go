package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestArchivedSubscribeMessage(t *testing.T) {
	t.Parallel()
	db := keeping(t, sandbox.NewDatabase(t), 90, 0)
	sent, failed := db.settledBooking(t, 1, task.SentOK), db.settledBooking(t, 2, task.SentFailed)
	pending := db.subscribe(t, oldBooking(3, `{}`))
	db.exec(t, `update subscribe_message_logs set updated_at = now() - interval '99 days', send_time = now() - interval '99 days'`)
	before := db.mustLog(t, sent.ID)
	require.Equal(t, map[string]int{"tasks": 2, "subscribe_message_logs": 2}, db.archivedRows(t, ArchiveRun{}))
	require.Equal(t, 1, db.count(t, `select count(*) from subscribe_message_logs`), "what is being sent stays")
	require.Equal(t, 1, db.count(t, `select count(*) from subscribe_message_sends`))

	t.Run("is found by its id, its name and its business event", func(t *testing.T) {
		found := db.mustLog(t, sent.ID)
		require.True(t, found.Archived)
		byName, err := db.SubscribeLogOf(t.Context(), "course_booking", 1, "BOOKING_CONFIRM", 9)
		require.NoError(t, err)
		require.Equal(t, found, byName)
		listed, more, err := db.BusinessLogs(t.Context(), "course_booking", 1, nil, 0, 10)
		require.NoError(t, err)
		require.False(t, more)
		require.Equal(t, []SubscribeLog{found}, listed)
		found.Archived = false
		require.Equal(t, before, found, "nothing of it is lost")
		history, _, err := db.SubscribeHistory(t.Context(), sent.ID, SendPlace{}, 10)
		require.NoError(t, err)
		require.Len(t, history, 1)
		require.Equal(t, sent.TaskID, history[0].TaskID)
	})
	t.Run("is kept from a caller with granted business types", func(t *testing.T) {
		for _, id := range []uint64{1, 2} {
			other := booking(id, `{}`)
			other.CallerID, other.OwnOnly = 8, true
			out, err := db.Subscribe(t.Context(), other)
			require.Equal(t, ErrOthersMessage(), err)
			require.Zero(t, out)
		}
	})
	t.Run("is skipped when it was sent", func(t *testing.T) {
		want := Subscribed{ID: sent.ID, TaskID: sent.TaskID, State: task.Succeeded, Status: task.SubscribeSent, Skipped: true, Archived: true}
		require.Equal(t, want, db.subscribe(t, booking(1, `{"thing1": {"value": "Tea"}}`)))
		want.DataDiffers = true
		require.Equal(t, want, db.subscribe(t, booking(1, `{"thing1":{"value":"Coffee"}}`)))
		refused := booking(1, `{}`)
		refused.Refused = task.Refuse(task.CodeBlocked, "blocked")
		require.True(t, db.subscribe(t, refused).Skipped)
		record := booking(1, `{}`)
		record.Queue, record.AppID, record.Lease = task.RecordedQueue, "app", time.Minute
		require.True(t, db.subscribe(t, record).Skipped)
		require.Equal(t, 1, db.count(t, `select count(*) from tasks`), "nothing is sent")
	})
	t.Run("is sent again when it failed", func(t *testing.T) {
		other := booking(2, `{"thing1":{"value":"Coffee"}}`)
		other.CallerID = 8
		_, err := db.Subscribe(t.Context(), other)
		require.Equal(t, task.CodeForbidden, task.CodeOf(err), "by who ordered it")
		again := db.subscribe(t, booking(2, `{"thing1":{"value":"Coffee"}}`))
		require.Equal(t, failed.ID, again.ID, "on its row")
		require.True(t, again.Again)
		require.False(t, again.Skipped)
		l := db.mustLog(t, failed.ID)
		require.False(t, l.Archived)
		require.Equal(t, 1, l.RetryCount)
		require.JSONEq(t, `{"thing1":{"value":"Coffee"}}`, string(l.Data))
		history, _, err := db.SubscribeHistory(t.Context(), failed.ID, SendPlace{}, 10)
		require.NoError(t, err)
		require.Len(t, history, 2)
		require.Equal(t, 1, db.count(t, `select count(*) from archived_subscribe_message_logs`))
	})
	t.Run("is resent by hand", func(t *testing.T) {
		_, err := db.ResendSubscription(t.Context(), sent.ID, &Subscription{TaskID: task.NewID(), Metadata: []byte(`{}`)}, false, Operator{})
		require.ErrorContains(t, err, "force")
		require.True(t, db.mustLog(t, sent.ID).Archived, "a refusal changes nothing")
		out, err := db.ResendSubscription(t.Context(), sent.ID, &Subscription{TaskID: task.NewID(), Metadata: []byte(`{}`)}, true, Operator{})
		require.NoError(t, err)
		require.True(t, out.Again)
		require.False(t, db.mustLog(t, sent.ID).Archived)
		require.Zero(t, db.count(t, `select count(*) from archived_subscribe_message_sends`))
	})
	require.False(t, db.mustLog(t, pending.ID).Archived)
}

// A late success of a task that is still in the main tables would change its
// message.
func TestSubscribeMessageStaysAsLongAsItsTasks(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := keeping(t, url, 90, 0)
	failed := db.settledBooking(t, 1, task.SentFailed)
	release := hold(t, url, `select from task_done where id = $1 for update`, failed.TaskID)
	require.Empty(t, db.archivedRows(t, ArchiveRun{}), "its task is in use, so both wait")
	release()
	require.Equal(t, map[string]int{"tasks": 1, "subscribe_message_logs": 1}, db.archivedRows(t, ArchiveRun{}))
}

// The archive and an order at the same moment: the order waits for the row, which
// then is gone, and must not make another one.
func TestOrderThatWaitsForTheArchiveFindsItsMessage(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, watch := keeping(t, url, 90, 0), owner(t, url)
	sent := db.settledBooking(t, 1, task.SentOK)
	db.exec(t, `delete from task_done`)
	db.exec(t, `delete from tasks`)
	release := hold(t, url, statements(t)["archiveSubscribeLogsSQL"], []string{"1"}, time.Now())
	answered := make(chan Subscribed, 1)
	go func() {
		out, err := db.Subscribe(t.Context(), booking(1, `{"thing1":{"value":"Tea"}}`))
		if err == nil {
			answered <- out
		}
		close(answered)
	}()
	require.Eventually(t, func() bool { return waiting(t, watch) }, 10*time.Second, time.Millisecond)
	release()
	out, ok := <-answered
	require.True(t, ok)
	require.Equal(t, Subscribed{ID: sent.ID, TaskID: sent.TaskID, State: task.Succeeded, Status: task.SubscribeSent, Skipped: true, Archived: true}, out)
	require.Zero(t, db.count(t, `select count(*) from subscribe_message_logs`))
	require.Zero(t, db.count(t, `select count(*) from task_live`), "nothing is sent twice")
}
