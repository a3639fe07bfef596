package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestARetryByHandIsOfTheNewestSendAlone(t *testing.T) {
	t.Parallel()
	db := open(t)
	by := Operator{CallerID: 1, Name: "ann", Reason: "mended"}
	first := db.subscribe(t, booking(1, `{"a":1}`))
	db.try(t, task.Report{Outcome: task.SentFailed})
	second := db.subscribe(t, booking(1, `{"a":2}`))

	_, err := db.RetryFailed(t.Context(), first.TaskID, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err), "its message has a newer send: both would go out")
	require.ErrorContains(t, err, "newer")
	require.Equal(t, 1, db.count(t, `select count(*) from task_live`))

	db.try(t, task.Report{Outcome: task.SentFailed})
	_, err = db.RetryFailed(t.Context(), second.TaskID, by)
	require.NoError(t, err)
	db.try(t, task.Report{Outcome: task.SentOK})
	require.Equal(t, task.SubscribeSent, db.mustLog(t, first.ID).Status)
}

func TestASendThatFailedIsNotRetriedOnceItsMessageIsSent(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := booking(1, `{"a":1}`)
	s.OnUnknown = task.Fail
	first := db.subscribe(t, s)
	lost := db.try(t, task.Report{Outcome: task.SentUnknown})
	second := db.subscribe(t, booking(1, `{"a":2}`))
	db.try(t, task.Report{Outcome: task.SentFailed, ShouldRetry: true})
	db.try(t, task.Report{Outcome: task.SentFailed})
	require.Equal(t, 2, db.mustLog(t, first.ID).RetryCount)
	outs, errs := db.Report([]*Report{{Request: []byte(`{}`), Report: task.Report{TaskID: first.TaskID, AppID: lost.AppID, ClaimID: lost.ClaimID}}})
	require.NoError(t, errs[0])
	require.Equal(t, task.Applied, outs[0].Verdict)
	require.Equal(t, 2, db.mustLog(t, first.ID).RetryCount, "that of an earlier send takes none back")

	_, err := db.RetryFailed(t.Context(), second.TaskID, Operator{Name: "ann"})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "force")
}

// A success that comes in while a resend makes up its mind must not be doubled.
func TestAResendHeedsASuccessThatItWaitedFor(t *testing.T) {
	t.Parallel()
	db := open(t)
	first := db.subscribe(t, booking(1, `{"a":1}`))
	db.try(t, task.Report{Outcome: task.SentFailed})
	resend := func() error {
		_, err := db.ResendSubscription(t.Context(), first.ID, &Subscription{TaskID: task.NewID(), MaxRetries: 3, Metadata: []byte(`{}`)}, false, Operator{Name: "ann"})
		return err
	}
	overtaken := func() error {
		tx, err := db.hot.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `update subscribe_message_logs set send_status = 1`)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- resend() }()
		for len(done) == 0 && db.count(t, `select count(*) from pg_locks where not granted`) == 0 {
			time.Sleep(time.Millisecond)
		}
		if len(done) > 0 { // it had waited for as long as it does
			require.NoError(t, tx.Rollback(t.Context()))
		} else {
			require.NoError(t, tx.Commit(t.Context()))
		}
		return <-done
	}
	err := overtaken()
	for task.CodeOf(err) == task.CodeServerBusy {
		db.exec(t, `update subscribe_message_logs set send_status = 2`)
		err = overtaken()
	}
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "force")
	require.Zero(t, db.count(t, `select count(*) from task_live`))
}
