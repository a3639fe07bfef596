package tasks_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// A bodiless task has no row in the table tasks.
func TestClaimRemovesBodilessTasks(t *testing.T) {
	t.Parallel()
	for _, mode := range []store.EventMode{store.NoEvents, store.AllEvents} {
		db := storetest.Open(t, storetest.WithEvents(mode))
		withBody := storetest.Submission()
		db.MustSubmit(t, withBody)
		db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue, caller_id)
			select ('00000000-0000-7000-8000-' || lpad(g::text, 12, '0'))::uuid, 1, 0, 0, 0, 'default', 0 from generate_series(1, 3000) g`)
		claimed := db.ClaimAs(t, "app", 1)
		require.Len(t, claimed, 1)
		require.Equal(t, withBody.ID, claimed[0].ID)
		require.Equal(t, 1, db.Count(t, `select count(*) from task_live`))
		require.Equal(t, 1, db.Count(t, `select count(*) from send_logs`))
	}
}

func TestRetryOfBodilessTaskIsNotFound(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	id := task.NewID()
	db.Exec(t, `insert into task_done (id, status, reason, retry_count, ended) values ($1, 3, 2, 0, 0)`, id)
	_, err := db.Tasks.RetryFailed(t.Context(), id, store.Operator{})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestClaimOrdersByPriorityThenRetriesThenAge(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	retried, older, urgent := storetest.Submission(), storetest.Submission(), storetest.Submission(func(s *tasks.Submission) { s.Priority = 1 })
	db.MustSubmit(t, retried)
	claimed := db.Claim(t)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: retried.ID, AppID: "app", ClaimID: claimed[0].ClaimID, Outcome: task.SentFailed, ShouldRetry: true}).Verdict)
	newer := storetest.Submission()
	db.MustSubmit(t, older, newer, urgent)

	require.Equal(t, []task.ID{urgent.ID, older.ID, newer.ID, retried.ID}, claimedIDs(db.Claim(t)))
}

func TestEmptyPollChecksWithoutClaiming(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	require.Empty(t, db.Claim(t))
	require.Zero(t, db.Tasks.LastClaimID(), "no claim id was used")
	require.Empty(t, db.Claim(t, func(r *tasks.ClaimRequest) { r.WokenUp = true }))
	require.NotZero(t, db.Tasks.LastClaimID(), "a poller that was woken claims without a check")
	db.MustSubmit(t, storetest.Submission())
	require.Len(t, db.Claim(t), 1)
	require.True(t, db.Tasks.RecentlyNonEmpty(task.DefaultQueue))

	require.Empty(t, db.Claim(t))
	require.False(t, db.Tasks.RecentlyNonEmpty(task.DefaultQueue))
	db.ExpireLeases(t)
	require.Len(t, db.Claim(t), 1, "the check also finds due tasks")
}

func TestClaimProcessesDueTasksIfItFindsTooFew(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission()
	db.MustSubmit(t, s)
	expired := db.Claim(t)
	db.ExpireLeases(t)
	db.Tasks.ObserveSlowClaims(task.DefaultQueue) // the next claim also starts a scan in the background, which must leave the expired lease to the claim
	again := db.Claim(t, func(r *tasks.ClaimRequest) { r.AppID = "other" })
	require.Len(t, again, 1, "a claim recovers expired leases without a call of Sweep")
	require.Equal(t, s.ID, again[0].ID)
	require.Equal(t, int16(1), again[0].RetryCount)
	require.NotEqual(t, again[0].ClaimID, expired[0].ClaimID)
	require.Equal(t, task.Stale, db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", ClaimID: expired[0].ClaimID, Outcome: task.SentOK}).Verdict)
	require.Equal(t, 1, db.Count(t, `select count(*) from report_logs where verdict = 'timeout_retry' and app_id = 'app' and claim_id = $1 and error_message = '处理超时，自动重试'`, expired[0].ClaimID))
	require.Equal(t, 1, db.Count(t, `select count(*) from report_logs where verdict = 'stale_claim' and claim_id = $1`, expired[0].ClaimID), "a stale report is logged")
}

func TestExtendChangesOnlyTheLiveClaim(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission()
	db.MustSubmit(t, s)
	c := db.Claim(t)[0]
	longer, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Lease: time.Hour, Sending: true}, nil)
	require.NoError(t, err)
	require.WithinDuration(t, c.LeaseUntil.Add(59*time.Minute), longer.LeaseUntil, 10*time.Second)
	require.True(t, longer.Sending)
	shorter, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: s.ID, AppID: "app", Lease: time.Minute}, []string{"default"})
	require.NoError(t, err)
	require.Equal(t, longer.LeaseUntil, shorter.LeaseUntil, "never shortened")
	require.True(t, shorter.Sending, "the mark stays")

	for name, e := range map[string]tasks.Extension{
		"another app":   {TaskID: s.ID, AppID: "other", ClaimID: c.ClaimID, Lease: time.Hour},
		"another claim": {TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID + 1, Lease: time.Hour},
	} {
		_, err = db.Tasks.Extend(t.Context(), e, nil)
		require.Equal(t, task.CodeStaleClaim, task.CodeOf(err), name)
	}
	_, err = db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: s.ID, AppID: "app", CallerID: stranger, Lease: time.Hour}, []string{"other"})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: task.NewID(), AppID: "app", Lease: time.Hour}, nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestUnmarkedTaskIsNotMarkedAfterItExpired(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	marked, unmarked := storetest.Submission(), storetest.Submission()
	db.MustSubmit(t, marked, unmarked)
	require.Len(t, db.ClaimAs(t, "app", 2), 2)
	mark := func(s *tasks.Submission) error {
		_, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: s.ID, AppID: "app", Lease: time.Minute, Sending: true}, nil)
		return err
	}
	require.NoError(t, mark(marked))
	db.Exec(t, `update task_live set expires_at = now()`)
	require.NoError(t, mark(marked), "the task was marked before it expired, so its message may have been sent")
	require.Equal(t, task.CodeStaleClaim, task.CodeOf(mark(unmarked)))
	_, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: unmarked.ID, AppID: "app", Lease: time.Minute}, nil)
	require.NoError(t, err, "the claim is live until its lease ends")
}

func TestRetriedTaskWaitsForItsSendTime(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	sendAt := time.Now().Add(time.Hour)
	s := storetest.Submission(func(s *tasks.Submission) { s.SendAt = sendAt })
	db.MustSubmit(t, s)
	_, err := db.Tasks.Cancel(t.Context(), s.ID, nil)
	require.NoError(t, err)
	_, err = db.Tasks.RetryFailed(t.Context(), s.ID, storetest.Tester)
	require.NoError(t, err)
	retried := db.MustTask(t, s.ID)
	require.Equal(t, task.Scheduled, retried.State)
	require.WithinDuration(t, sendAt, retried.DueAt, time.Second)
}

func TestTaskIsPendingAfterLeaseIfThePromisedMarkIsMissing(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	hold := func(s *tasks.Submission) { s.OnUnknown = task.Hold }
	unmarked, marked, notPromised := storetest.Submission(hold), storetest.Submission(hold), storetest.Submission(hold)
	promiseMarks := func(r *tasks.ClaimRequest) { r.MarksSending, r.Limit = true, 2 }
	db.MustSubmit(t, unmarked, marked)
	require.Len(t, db.Claim(t, promiseMarks), 2)
	_, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: marked.ID, AppID: "app", Lease: time.Minute, Sending: true}, nil)
	require.NoError(t, err)
	db.MustSubmit(t, notPromised)
	require.Len(t, db.Claim(t), 1)
	db.ExpireLeases(t)
	swept, err := db.Tasks.Sweep(t.Context(), 500)
	require.NoError(t, err)
	require.Equal(t, 3, swept.Rows)
	require.Equal(t, task.Pending, db.MustTask(t, unmarked.ID).State)
	require.Equal(t, task.Held, db.MustTask(t, marked.ID).State)
	require.Equal(t, task.Held, db.MustTask(t, notPromised.ID).State, "the claim did not promise a mark, so the message may have been sent")
}
