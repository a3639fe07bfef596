package subscribe_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// resending returns the submission with which an operator resends a message.
func resending() *subscribe.Submission {
	return &subscribe.Submission{TaskID: task.NewID(), MaxRetries: 3, Metadata: []byte(`{}`)}
}

func beginSend(t *testing.T, db *storetest.DB, id task.ID) subscribe.Send {
	t.Helper()
	sends, err := db.Subscribe.BeginSends(t.Context(), []task.ID{id})
	require.NoError(t, err)
	require.Contains(t, sends, id)
	return sends[id]
}

func TestOneBusinessEventIsOneMessage(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	const largest uint64 = 1<<64 - 1
	first := db.MustSubscribe(t, storetest.Booking(largest, `{"thing1":{"value":"Tea"}}`))
	require.False(t, first.Skipped)
	require.Equal(t, task.Pending, first.State)
	again := db.MustSubscribe(t, storetest.Booking(largest, `{"thing1": {"value": "Tea"}}`))
	require.Equal(t, subscribe.Submitted{ID: first.ID, TaskID: first.TaskID, State: task.Pending, Skipped: true}, again)
	require.True(t, db.MustSubscribe(t, storetest.Booking(largest, `{"thing1":{"value":"Coffee"}}`)).DataDiffers)
	l := db.MustLog(t, first.ID)
	require.Equal(t, largest, l.BusinessID)
	require.Equal(t, task.SubscribeSending, l.Status)

	db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
	again = db.MustSubscribe(t, storetest.Booking(largest, `{"thing1":{"value":"Tea"}}`))
	require.Equal(t, subscribe.Submitted{ID: first.ID, TaskID: first.TaskID, State: task.Succeeded, Status: task.SubscribeSent, Skipped: true}, again)
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`))
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_sends`))
}

func TestOneOfConcurrentSubmissionsIsSent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var submitted atomic.Int64
	var callers sync.WaitGroup
	submit := func() {
		var out subscribe.Submitted
		err := storetest.RetryBusy(func() (err error) {
			out, err = db.Subscribe.Submit(t.Context(), storetest.Booking(1, `{}`))
			return err
		})
		switch {
		case err != nil:
			t.Error(err)
		case !out.Skipped:
			submitted.Add(1)
		}
	}
	for range 2 {
		for range 30 {
			callers.Go(submit)
		}
		callers.Wait()
		require.EqualValues(t, 1, submitted.Swap(0))
		require.Equal(t, 1, db.Count(t, `select count(*) from task_live`))
		db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed, ErrorCode: "40003"}) // so the message can be submitted again
	}
}

func TestSubmitOfFailedMessageReusesRowWithNewData(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	first := db.MustSubscribe(t, storetest.Booking(1, `{"thing1":{"value":"Tea"}}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	l := db.MustLog(t, first.ID)
	require.Equal(t, task.SubscribeFailed, l.Status)
	require.Equal(t, task.SendFailedCode, l.ErrorCode)
	require.Equal(t, task.SendFailedMessage, l.ErrorMessage)

	second := db.MustSubscribe(t, storetest.Booking(1, `{"thing1":{"value":"Coffee"}}`))
	require.Equal(t, first.ID, second.ID)
	require.True(t, second.Again)
	require.False(t, second.Skipped)
	l = db.MustLog(t, first.ID)
	require.JSONEq(t, `{"thing1":{"value":"Coffee"}}`, string(l.Data))
	require.Equal(t, task.SubscribeSending, l.Status)
	require.Empty(t, l.ErrorCode)
	require.Equal(t, 1, l.RetryCount)
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_logs where retries_before = retry_count`))
	history, _, err := db.Subscribe.History(t.Context(), first.ID, subscribe.SendCursor{}, 10)
	require.NoError(t, err)
	require.Len(t, history, 2)
	require.JSONEq(t, `{"thing1":{"value":"Tea"}}`, string(history[1].Data))
}

func TestNewSubmissionReplacesWaitingRetry(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	first := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	require.Equal(t, task.Pending, db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed, ShouldRetry: true, ErrorCode: "-1"}).State)
	require.Equal(t, task.SubscribeFailed, db.MustLog(t, first.ID).Status)
	second := db.MustSubscribe(t, storetest.Booking(1, `{"a":2}`))
	require.True(t, second.Again)
	require.Equal(t, 1, db.MustLog(t, first.ID).RetryCount, "the replaced retry is counted once")
	require.Equal(t, task.Cancelled, db.MustTask(t, first.TaskID).Reason)
	require.JSONEq(t, `{"a":2}`, string(beginSend(t, db, second.TaskID).Data))
}

func TestLateSuccessOfEarlierSendMakesMessageSent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Booking(1, `{"a":1}`)
	s.OnUnknown = task.Fail
	first := db.MustSubscribe(t, s)
	claim := db.Claim(t, storetest.FromQueue(task.WeChatQueue))[0]
	r := task.Report{TaskID: first.TaskID, AppID: "app", ClaimID: claim.ClaimID, Outcome: task.SentUnknown}
	require.Equal(t, task.Applied, db.MustReport(t, r).Verdict)
	second := db.MustSubscribe(t, storetest.Booking(1, `{"a":2}`))
	require.True(t, second.Again)
	r.Outcome = task.SentOK
	require.Equal(t, task.Applied, db.MustReport(t, r).Verdict, "the first send was delivered after all")
	require.Equal(t, task.SubscribeSent, db.MustLog(t, first.ID).Status)
	send := beginSend(t, db, second.TaskID)
	require.True(t, send.Sent)
	require.True(t, send.MayHaveBeenSent)
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	require.Equal(t, task.SubscribeSent, db.MustLog(t, first.ID).Status, "the message stays sent")
	require.True(t, db.MustSubscribe(t, storetest.Booking(1, `{"a":3}`)).Skipped)
}

// An UPDATE changes the row of a message only once, even if several outcomes join it.
func TestLateSuccessIsAppliedTogetherWithNewestOutcome(t *testing.T) {
	t.Parallel()
	for _, successFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("success first ", successFirst), func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			submit := func() subscribe.Submitted {
				s := storetest.Booking(1, `{"a":1}`)
				s.OnUnknown = task.Fail
				return db.MustSubscribe(t, s)
			}
			report := func(send subscribe.Submitted, outcome task.Outcome) task.Report {
				return task.Report{TaskID: send.TaskID, AppID: "app", Outcome: outcome}
			}
			first := submit()
			late := report(first, task.SentUnknown)
			late.ClaimID = db.Claim(t, storetest.FromQueue(task.WeChatQueue))[0].ClaimID
			require.Equal(t, task.Applied, db.MustReport(t, late).Verdict)
			late.Outcome = task.SentOK
			newest := report(submit(), task.SentFailed)
			newest.ClaimID = db.Claim(t, storetest.FromQueue(task.WeChatQueue))[0].ClaimID

			reports := []*tasks.Report{storetest.Report(newest), storetest.Report(late)}
			if successFirst {
				slices.Reverse(reports)
			}
			reported, errs := db.Tasks.Report(reports)
			for i := range reports {
				require.NoError(t, errs[i])
				require.Equal(t, task.Applied, reported[i].Verdict)
			}
			require.Equal(t, task.SubscribeSent, db.MustLog(t, first.ID).Status)
			require.True(t, submit().Skipped, "it is not sent again")
		})
	}
}

func TestRecordedMessageIsClaimedByItsCaller(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	record := func() subscribe.Submitted {
		s := storetest.Booking(1, `{"a":1}`)
		s.Queue, s.AppID, s.Lease, s.OnUnknown = task.RecordedQueue, "shop", time.Minute, task.Resend
		return db.MustSubscribe(t, s)
	}
	first := record()
	require.Equal(t, task.Processing, first.State)
	require.Positive(t, first.ClaimID)
	require.WithinDuration(t, time.Now().Add(time.Minute), first.LeaseUntil, 10*time.Second)
	require.True(t, record().Skipped, "the message is being sent")
	db.ExpireLeases(t)
	_, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	second := record()
	require.True(t, second.Again, "the lease of the first claim expired")
	require.Equal(t, task.Stale, db.MustReport(t, task.Report{TaskID: first.TaskID, AppID: "shop", CallerID: 7, ClaimID: first.ClaimID, Outcome: task.SentFailed}).Verdict)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: second.TaskID, AppID: "shop", CallerID: 7, ClaimID: second.ClaimID, Outcome: task.SentOK}).Verdict)
	require.Equal(t, task.SubscribeSent, db.MustLog(t, first.ID).Status)
}

// A sender that could choose any send time could give millions of messages the same one. No statement could then count this minute
// before its timeout, and no later day would be closed and archived.
func TestSendTimeIsBetweenSubmissionAndReport(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for n, sentAt := range []time.Time{time.Now().AddDate(-1, 0, 0), time.Now().AddDate(1, 0, 0)} {
		sent := db.MustSubscribe(t, storetest.Booking(uint64(n), `{"a":1}`))
		db.ClaimAndReport(t, task.Report{Outcome: task.SentOK, SentAt: sentAt})
		require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_logs where id = $1 and send_time between created_at and now() and (send_time > created_at) = $2`, sent.ID, n == 1))
		detail, err := db.Tasks.ByID(t.Context(), sent.TaskID)
		require.NoError(t, err)
		require.WithinDuration(t, sentAt, detail.SentAt, time.Millisecond, "the task keeps the time of the report")
	}
}

func TestResendNeedsFailureOrForce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	first := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	by := store.Operator{CallerID: 1, Name: "ann", Reason: "the user asked"}
	resend := func(force bool) (subscribe.Submitted, error) {
		return db.Subscribe.Resend(t.Context(), first.ID, resending(), force, by)
	}
	_, err := resend(true)
	require.Equal(t, task.CodeConflict, task.CodeOf(err), "the message is being sent")
	db.Exec(t, `update subscribe_message_sends set lang = 'zh_TW', miniprogram_state = 'trial'`)
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	out, err := resend(false)
	require.NoError(t, err)
	require.True(t, out.Again)
	send := beginSend(t, db, out.TaskID)
	require.Equal(t, "zh_TW", send.Lang)
	require.Equal(t, "trial", send.MiniprogramState)
	db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
	_, err = resend(false)
	require.ErrorContains(t, err, "force")
	_, err = resend(true)
	require.NoError(t, err)
	require.Equal(t, 2, db.Count(t, `select count(*) from operator_actions where action = 'subscribe.resend' and reason = 'the user asked'`))
	_, err = db.Subscribe.Resend(t.Context(), 99, resending(), false, by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestSubmissionOfAnotherCallersMessageNeedsOneConnection(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, func(c *stores.Config) { c.MaxConns = 1 })
	db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	other := storetest.Booking(1, `{"a":1}`)
	other.CallerID = 8
	out, err := db.Subscribe.Submit(store.WithCaller(t.Context(), 8), other)
	require.NoError(t, err)
	require.True(t, out.Skipped)
}

// Claims skip locked tasks: if a submission locked the task, a caller could delay another caller's message by submitting it again and
// again.
func TestSubmissionOfAnotherCallersMessageLocksNothing(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	first := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	db.HoldLock(t, `select from task_live for update`)
	db.HoldLock(t, `select from subscribe_message_logs for update`)
	other := storetest.Booking(1, `{"a":2}`)
	other.CallerID = 8
	require.Equal(t, subscribe.Submitted{ID: first.ID, TaskID: first.TaskID, State: task.Pending, Skipped: true}, db.MustSubscribe(t, other))
	other.HidesOthers = true
	_, err := db.Subscribe.Submit(t.Context(), other)
	require.Equal(t, subscribe.ErrOthersMessage(), err)
}

func TestRefusedSubmissionOfMessageBeingSentIsSkipped(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	refuse := func(id uint64) (subscribe.Submitted, error) {
		s := storetest.Booking(id, `{"a":2}`)
		s.Refused = task.Refuse(task.CodeBlocked, "blocked")
		return db.Subscribe.Submit(t.Context(), s)
	}
	first := db.MustSubscribe(t, storetest.Booking(1, `{"a":1}`))
	out, err := refuse(1)
	require.NoError(t, err)
	require.Equal(t, subscribe.Submitted{ID: first.ID, TaskID: first.TaskID, State: task.Pending, Skipped: true, DataDiffers: true}, out)
	_, err = refuse(2)
	require.Equal(t, task.CodeBlocked, task.CodeOf(err))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	_, err = refuse(1)
	require.Equal(t, task.CodeBlocked, task.CodeOf(err))
	require.Equal(t, 1, db.Count(t, `select count(*) from subscribe_message_logs`))
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`))
}

func TestOtherCallersCannotSendFailedMessageAgain(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	first := db.MustSubscribe(t, storetest.Booking(1, `{}`))
	other := storetest.Booking(1, `{}`)
	other.CallerID = 8
	require.True(t, db.MustSubscribe(t, other).Skipped)
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	_, err := db.Subscribe.Submit(t.Context(), other)
	require.Equal(t, task.CodeForbidden, task.CodeOf(err))
	other.MayResendOthers = true
	require.True(t, db.MustSubscribe(t, other).Again)
	require.EqualValues(t, 7, db.MustLog(t, first.ID).CallerID, "the message still belongs to the first caller")
}

// A sender that begins a send after the task has ended must not mark the message as being sent.
func TestFinishedSendIsNotShownAsSending(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	out := db.MustSubscribe(t, storetest.Booking(1, `{}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	beginSend(t, db, out.TaskID)
	require.Equal(t, task.SubscribeFailed, db.MustLog(t, out.ID).Status)
}

// The queries of the original system about its log of subscribe messages.
const (
	originalMessagesSQL = `SELECT
  id,
  template_type,
  receiver_user_id,
  send_status,
  send_time,
  error_message
FROM subscribe_message_logs
WHERE business_type = 'course_booking'
  AND business_id = 123`

	// originalRatesSQL reads every row. TemplateRates returns the same numbers.
	originalRatesSQL = `SELECT
  template_type,
  COUNT(*) as total,
  SUM(CASE WHEN send_status = 1 THEN 1 ELSE 0 END) as success,
  SUM(CASE WHEN send_status = 2 THEN 1 ELSE 0 END) as failed,
  ROUND(SUM(CASE WHEN send_status = 1 THEN 1 ELSE 0 END) * 100.0 / COUNT(*), 2) as success_rate
FROM subscribe_message_logs
GROUP BY template_type`

	originalFailuresSQL = `SELECT
  id,
  template_type,
  business_id,
  receiver_user_id,
  error_code,
  error_message,
  send_time
FROM subscribe_message_logs
WHERE send_status = 2
ORDER BY send_time DESC
LIMIT 10`
)

func TestOriginalSubscribeQueriesRunUnchanged(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubscribe(t, storetest.Booking(123, `{}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentOK})
	db.MustSubscribe(t, storetest.Booking(124, `{}`))
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed, ErrorCode: "40003", Message: "invalid openid"})
	for sql, row := range map[string]string{
		originalMessagesSQL: `send_status = 1 and error_message is null`,
		originalRatesSQL:    `total = 2 and success = 1 and failed = 1 and success_rate = 50.00`,
		originalFailuresSQL: `business_id = 124 and error_code = '40003' and error_message = 'invalid openid'`,
	} {
		require.Equal(t, 1, db.Count(t, `select count(*) from (`+sql+`) q where `+row), sql)
	}
	require.Equal(t, []subscribe.TemplateRate{{TemplateType: "BOOKING_CONFIRM", Total: 2, Success: 1, Failed: 1}}, db.MustRates(t, time.Time{}, nil))
	failed, _, err := db.Subscribe.FailedLogs(t.Context(), nil, subscribe.LogCursor{}, 10)
	require.NoError(t, err)
	require.Len(t, failed, 1)
	logs, more, err := db.Subscribe.BusinessLogs(t.Context(), "course_booking", 123, nil, 0, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, logs, 1)
	logs, _, err = db.Subscribe.BusinessLogs(t.Context(), "course_booking", 123, new(int64(8)), 0, 10)
	require.NoError(t, err)
	require.Empty(t, logs, "the message of another caller is not listed")
}

func TestSubmitNotifiesRelayOnlyInAllEventsMode(t *testing.T) {
	t.Parallel()
	for mode, want := range map[store.EventMode]int64{store.NoEvents: 0, store.FinalEvents: 0, store.AllEvents: 2} {
		var notified atomic.Int64
		db := storetest.Open(t, func(c *stores.Config) { c.Events, c.OnEvents = mode, func() { notified.Add(1) } })
		db.MustSubscribe(t, storetest.Booking(1, `{}`))
		db.Exec(t, `update subscribe_message_logs set send_status = 2`)
		db.Exec(t, `with l as (delete from task_live) delete from tasks`) // as if the task had failed and had been archived
		require.True(t, db.MustSubscribe(t, storetest.Booking(1, `{}`)).Again)
		require.Equal(t, want, notified.Load())
	}
}

func TestSubmitIsCommittedOnceIfResponseIsLost(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL())
	require.NoError(t, db.Ping(t.Context()))
	fired := proxy.LoseResponse(sandbox.Containing("insert into subscribe_message_logs"))
	first := db.MustSubscribe(t, storetest.Booking(1, `{}`))
	<-fired
	require.False(t, first.Again || first.Skipped, "the second try recognises the first")
	db.ClaimAndReport(t, task.Report{Outcome: task.SentFailed})
	fired = proxy.LoseResponse(sandbox.Containing("commit"))
	again := db.MustSubscribe(t, storetest.Booking(1, `{}`))
	<-fired
	require.Equal(t, first.ID, again.ID)
	require.True(t, again.Again)
	require.False(t, again.Skipped)
	require.Equal(t, 2, db.Count(t, `select count(*) from tasks`))
}
