package subscribe_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

func TestArchivedSubscribeMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	sent, failed := db.MustSettleOldBooking(t, 1, task.SentOK), db.MustSettleOldBooking(t, 2, task.SentFailed)
	pending := db.MustSubscribe(t, storetest.OldBooking(3, `{}`))
	db.Exec(t, `update subscribe_message_logs set updated_at = now() - interval '99 days', send_time = now() - interval '99 days'`)
	before := db.MustLog(t, sent.ID)
	require.Equal(t, map[string]int{"tasks": 2, "subscribe_message_logs": 2}, db.MustArchive(t, maintenance.ArchiveRun{}))
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_logs`), "a message that is being sent is not archived")
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_sends`))

	t.Run("is found by its id, its key and its business event", func(t *testing.T) {
		found := db.MustLog(t, sent.ID)
		require.True(t, found.Archived)
		byKey, err := db.Subscribe.FindLog(t.Context(), "course_booking", 1, "BOOKING_CONFIRM", 9)
		require.NoError(t, err)
		require.Equal(t, found, byKey)
		listed, more, err := db.Subscribe.BusinessLogs(t.Context(), "course_booking", 1, nil, 0, 10)
		require.NoError(t, err)
		require.False(t, more)
		require.Equal(t, []subscribe.Log{found}, listed)
		found.Archived = false
		require.Equal(t, before, found)
		history, _, err := db.Subscribe.History(t.Context(), sent.ID, subscribe.SendCursor{}, 10)
		require.NoError(t, err)
		require.Len(t, history, 1)
		require.Equal(t, sent.TaskID, history[0].TaskID)
	})
	t.Run("is refused to a caller who may not see messages of others", func(t *testing.T) {
		for _, id := range []uint64{1, 2} {
			other := storetest.Booking(id, `{}`)
			other.CallerID, other.HidesOthers = 8, true
			out, err := db.Subscribe.Submit(t.Context(), other)
			require.Equal(t, subscribe.ErrOthersMessage(), err)
			require.Zero(t, out)
		}
	})
	t.Run("is skipped if it was sent", func(t *testing.T) {
		want := subscribe.Submitted{ID: sent.ID, TaskID: sent.TaskID, State: task.Succeeded, Status: task.SubscribeSent, Skipped: true, Archived: true}
		require.Equal(t, want, db.MustSubscribe(t, storetest.Booking(1, `{"thing1": {"value": "Tea"}}`)))
		want.DataDiffers = true
		require.Equal(t, want, db.MustSubscribe(t, storetest.Booking(1, `{"thing1":{"value":"Coffee"}}`)))
		refused := storetest.Booking(1, `{}`)
		refused.Refused = task.Refuse(task.CodeBlocked, "blocked")
		require.True(t, db.MustSubscribe(t, refused).Skipped)
		record := storetest.Booking(1, `{}`)
		record.Queue, record.AppID, record.Lease = task.RecordedQueue, "app", time.Minute
		require.True(t, db.MustSubscribe(t, record).Skipped)
		require.Equal(t, 1, db.Count(t, `select count(*) from tasks`), "nothing is sent")
	})
	t.Run("is sent again if it failed", func(t *testing.T) {
		other := storetest.Booking(2, `{"thing1":{"value":"Coffee"}}`)
		other.CallerID = 8
		_, err := db.Subscribe.Submit(t.Context(), other)
		require.Equal(t, task.CodeForbidden, task.CodeOf(err), "only the caller who submitted it may send it again")
		again := db.MustSubscribe(t, storetest.Booking(2, `{"thing1":{"value":"Coffee"}}`))
		require.Equal(t, failed.ID, again.ID, "in the same row")
		require.True(t, again.Again)
		require.False(t, again.Skipped)
		l := db.MustLog(t, failed.ID)
		require.False(t, l.Archived)
		require.Equal(t, 1, l.RetryCount)
		require.JSONEq(t, `{"thing1":{"value":"Coffee"}}`, string(l.Data))
		history, _, err := db.Subscribe.History(t.Context(), failed.ID, subscribe.SendCursor{}, 10)
		require.NoError(t, err)
		require.Len(t, history, 2)
		require.Equal(t, 1, db.Count(t, `select count(*) from archived_subscribe_message_logs`))
	})
	t.Run("is resent by an operator", func(t *testing.T) {
		_, err := db.Subscribe.Resend(t.Context(), sent.ID, resending(), false, store.Operator{})
		require.ErrorContains(t, err, "force")
		require.True(t, db.MustLog(t, sent.ID).Archived, "a refusal changes nothing")
		out, err := db.Subscribe.Resend(t.Context(), sent.ID, resending(), true, store.Operator{})
		require.NoError(t, err)
		require.True(t, out.Again)
		require.False(t, db.MustLog(t, sent.ID).Archived)
		require.Zero(t, db.Count(t, `select count(*) from archived_subscribe_message_sends`))
	})
	require.False(t, db.MustLog(t, pending.ID).Archived)
}

// A message must not be archived before its tasks: a late success of a task changes the message.
func TestSubscribeMessageIsArchivedWithItsTasks(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	failed := db.MustSettleOldBooking(t, 1, task.SentFailed)
	release := db.HoldLock(t, `select from task_done where id = $1 for update`, failed.TaskID)
	require.Empty(t, db.MustArchive(t, maintenance.ArchiveRun{}), "the task is locked, so neither the task nor the message is archived")
	release()
	require.Equal(t, map[string]int{"tasks": 1, "subscribe_message_logs": 1}, db.MustArchive(t, maintenance.ArchiveRun{}))
}

func TestSubmitToLockedTableIsServerBusyNotKeyInFlight(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.HoldLock(t, `lock table task_live`)
	_, err := db.Subscribe.Submit(t.Context(), storetest.Booking(1, `{"thing1":{"value":"Tea"}}`))
	require.Equal(t, task.CodeServerBusy, task.CodeOf(err))
}

// A submission that waits for a row while the row is archived must find the archived row, and not insert another row.
func TestSubmitDuringArchivingFindsArchivedMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	sent := db.MustSettleOldBooking(t, 1, task.SentOK)
	db.Exec(t, `delete from task_done`)
	db.Exec(t, `delete from tasks`)
	release := db.HoldLock(t, storetest.Statements(t)["archiveSubscribeLogsSQL"], []string{"1"}, time.Now())
	var out subscribe.Submitted
	var err error
	var submit sync.WaitGroup
	submit.Go(func() {
		for retry := true; retry; retry = task.CodeOf(err) == task.CodeKeyInFlight { // each try waits for the row for a limited time
			out, err = db.Subscribe.Submit(t.Context(), storetest.Booking(1, `{"thing1":{"value":"Tea"}}`))
		}
	})
	db.AwaitLockWait(t)
	release()
	submit.Wait()
	require.NoError(t, err)
	require.Equal(t, subscribe.Submitted{ID: sent.ID, TaskID: sent.TaskID, State: task.Succeeded, Status: task.SubscribeSent, Skipped: true, Archived: true}, out)
	require.Zero(t, db.Count(t, `select count(*) from subscribe_message_logs`))
	require.Zero(t, db.Count(t, `select count(*) from task_live`), "nothing is sent twice")
}

// If the row of a message is deleted after a submission has found it, the submission creates a new message.
func TestSubmitRecreatesMessageDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	deleted := db.MustSettleOldBooking(t, 1, task.SentFailed)
	release := db.HoldLock(t, `select from task_done where id = $1 for update`, deleted.TaskID)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out subscribe.Submitted
	var err error
	var submit sync.WaitGroup
	submit.Go(func() {
		for retry := true; retry; retry = task.CodeOf(err) == task.CodeServerBusy { // each try waits for the task for a limited time
			out, err = db.Subscribe.Submit(ctx, storetest.Booking(1, `{"thing1":{"value":"Tea"}}`))
		}
	})
	db.AwaitLockWait(t)
	db.Exec(t, `delete from subscribe_message_logs`)
	release()
	submit.Wait()
	require.NoError(t, err)
	require.NotEqual(t, deleted.ID, out.ID)
	require.Equal(t, task.Pending, out.State)
}
