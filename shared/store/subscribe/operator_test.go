package subscribe_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func TestManualRetryAppliesToNewestSendOnly(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	by := store.Operator{CallerID: 1, Name: "ann", Reason: "corrected"}
	first := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	second := db.MustSubscribe(t, storetest.Booking(1, `{"a":2}`))

	_, err := db.Tasks.RetryFailed(t.Context(), first.TaskID, by)
	require.Equal(t, task.CodeConflict, task.CodeOf(err), "the message has a newer send")
	require.ErrorContains(t, err, "newer")
	require.Equal(t, 1, db.Count(t, `select count(*) from task_live`))

	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	_, err = db.Tasks.RetryFailed(t.Context(), second.TaskID, by)
	require.NoError(t, err)
	db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
	require.Equal(t, task.SubscribeSent, db.MustLog(t, first.ID).Status)
}

func TestFailedSendOfSentMessageIsNotRetried(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Booking(1, `{"a":1}`)
	s.OnUnknown = task.Fail
	first := db.MustSubscribe(t, s)
	unknown := db.ClaimAndReport(t, task.Report{Outcome: task.SentUnknown})
	second := db.MustSubscribe(t, storetest.Booking(1, `{"a":2}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed, ShouldRetry: true})
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	require.Equal(t, 2, db.MustLog(t, first.ID).RetryCount)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: first.TaskID, AppID: unknown.AppID, ClaimID: unknown.ClaimID}).Verdict)
	require.Equal(t, 2, db.MustLog(t, first.ID).RetryCount, "the success of an earlier send does not reduce the count")

	_, err := db.Tasks.RetryFailed(t.Context(), second.TaskID, store.Operator{Name: "ann"})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "force")
}

// A resend that waits for the row must see that the message was sent meanwhile.
func TestResendOfMessageSentMeanwhileIsRefused(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	message := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	resend := func() error {
		_, err := db.Subscribe.Resend(t.Context(), message.ID, resending(), false, store.Operator{Name: "ann"})
		return err
	}
	resendDuringSuccess := func() error {
		commit := db.HoldLock(t, `update subscribe_message_logs set send_status = 1`)
		done := make(chan error, 1)
		go func() { done <- resend() }()
		for len(done) == 0 && !storetest.IsWaiting(t, db.Owner) {
			time.Sleep(time.Millisecond)
		}
		commit()
		return <-done
	}
	err := resendDuringSuccess()
	for task.CodeOf(err) == task.CodeServerBusy { // the lock timeout of the resend has passed
		db.Exec(t, `update subscribe_message_logs set send_status = 2`)
		err = resendDuringSuccess()
	}
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	require.ErrorContains(t, err, "force")
	require.Zero(t, db.Count(t, `select count(*) from task_live`))
}
