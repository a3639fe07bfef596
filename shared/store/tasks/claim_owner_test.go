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

// claimAs claims the only pending task as a caller.
func claimAs(t *testing.T, db *storetest.DB, caller int64) tasks.Claimed {
	t.Helper()
	claimed := db.Claim(t, func(r *tasks.ClaimRequest) { r.CallerID = caller })
	require.Len(t, claimed, 1)
	return claimed[0]
}

func reportAs(t *testing.T, db *storetest.DB, caller int64, c tasks.Claimed, outcome task.Outcome) task.Verdict {
	t.Helper()
	return db.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", CallerID: caller, ClaimID: c.ClaimID, Outcome: outcome}).Verdict
}

func expireAndSweep(t *testing.T, db *storetest.DB) {
	t.Helper()
	db.ExpireLeases(t)
	_, err := db.Tasks.Sweep(t.Context(), 500)
	require.NoError(t, err)
}

const claimant, stranger = 5, 6 // callers

// The newest claim of a task belongs to the caller that made it, even after the claim has ended, whatever the state of the task.
func TestLateSuccessIsAppliedForTheClaimantOnly(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*tasks.Submission{
		"pending again": storetest.Submission(),
		"held":          storetest.Submission(func(s *tasks.Submission) { s.OnUnknown = task.Hold }),
		"failed":        storetest.Submission(func(s *tasks.Submission) { s.OnUnknown = task.Fail }),
		"exhausted":     storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 0 }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			db.MustSubmit(t, s)
			c := claimAs(t, db, claimant)
			expireAndSweep(t, db)
			require.Equal(t, task.Stale, reportAs(t, db, stranger, c, task.SentOK))
			require.Equal(t, task.Stale, reportAs(t, db, claimant, c, task.SentFailed), "a late failure")
			require.Equal(t, task.Applied, reportAs(t, db, claimant, c, task.SentOK))
			require.Equal(t, task.Succeeded, db.MustTask(t, s.ID).State)
			require.Empty(t, db.Claim(t))
			require.Equal(t, task.Stale, reportAs(t, db, stranger, c, task.SentOK), "a repeat is stale for the stranger too")
			require.Equal(t, task.Already, reportAs(t, db, claimant, c, task.SentOK))
		})
	}
}

// If the caller's report was refused, the message that it has sent would be sent again.
func TestCallerKeepsItsClaimAfterItLosesAccessToTheQueue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission())
	c := claimAs(t, db, claimant)
	queues := []string{"other"}
	_, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: c.ID, AppID: "app", CallerID: claimant, ClaimID: c.ClaimID, Lease: time.Hour}, queues)
	require.NoError(t, err)
	for _, want := range []task.Verdict{task.Applied, task.Already} {
		report := storetest.Report(task.Report{TaskID: c.ID, AppID: "app", CallerID: claimant, ClaimID: c.ClaimID, Outcome: task.SentOK})
		report.Queues = queues
		outs, errs := db.Tasks.Report([]*tasks.Report{report})
		require.NoError(t, errs[0])
		require.Equal(t, want, outs[0].Verdict)
	}
}

func TestClaimBelongsToTheCallerThatClaimedLast(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 0 }))
	first := claimAs(t, db, stranger)
	require.Equal(t, task.Applied, reportAs(t, db, stranger, first, task.Released))
	second := claimAs(t, db, claimant)
	for _, claimID := range []int64{first.ClaimID, second.ClaimID, 0} {
		_, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: first.ID, AppID: "app", CallerID: stranger, ClaimID: claimID, Lease: time.Hour}, nil)
		require.Equal(t, task.CodeStaleClaim, task.CodeOf(err))
	}
	_, err := db.Tasks.Extend(t.Context(), tasks.Extension{TaskID: first.ID, AppID: "app", CallerID: claimant, ClaimID: second.ClaimID, Lease: time.Hour}, nil)
	require.NoError(t, err)
	require.Equal(t, task.Stale, reportAs(t, db, stranger, second, task.SentFailed))

	t.Run("when the task is final and then retried", func(t *testing.T) {
		require.Equal(t, task.Applied, reportAs(t, db, claimant, second, task.SentFailed))
		_, err := db.Tasks.RetryFailed(t.Context(), first.ID, store.Operator{Name: "ann"})
		require.NoError(t, err)
		require.EqualValues(t, claimant, *db.MustTask(t, first.ID).ClaimedBy)
		require.Equal(t, task.Stale, reportAs(t, db, stranger, second, task.SentOK))
		require.Equal(t, task.Stale, reportAs(t, db, claimant, first, task.SentOK), "an older claim")
	})
}

func TestForeignReportsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission()
	db.MustSubmit(t, s)
	foreign := func() *tasks.Report {
		return &tasks.Report{Request: []byte(`{"app_id":"app"}`), Report: task.Report{TaskID: s.ID, AppID: "app", CallerID: stranger, Outcome: task.SentOK, Message: "mine"}}
	}
	c := claimAs(t, db, claimant)
	own := task.Report{TaskID: s.ID, AppID: "app", CallerID: claimant, ClaimID: 1 << 40, Outcome: task.SentOK} // no claim has this id
	for range 3 {
		outs, errs := db.Tasks.Report([]*tasks.Report{foreign(), foreign(), storetest.Report(own)})
		for i := range outs {
			require.NoError(t, errs[i])
			require.Equal(t, task.Stale, outs[i].Verdict)
		}
	}
	require.Equal(t, 1, db.Count(t, `select count(*) from report_logs where caller_id = $1`, stranger), "only the first report of the stranger is logged")
	require.Equal(t, 3, db.Count(t, `select count(*) from report_logs where caller_id is null`), "every report of the caller that claimed is logged")
	require.Equal(t, task.Applied, reportAs(t, db, claimant, c, task.SentOK))
	events, _, err := db.Tasks.Timeline(t.Context(), s.ID, tasks.TimelineCursor{}, 10)
	require.NoError(t, err)
	var reports []tasks.TimelineEvent
	for _, e := range events {
		if e.Event == tasks.EventReport && e.CallerID != nil && *e.CallerID == stranger {
			reports = append(reports, e)
		}
	}
	require.Len(t, reports, 1)
	require.Equal(t, "stale_claim", reports[0].Verdict)
	require.Equal(t, "mine", reports[0].Message)
}

func TestTimeoutOfReportFailsOnlyReportsOfItsCaller(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission()
	db.MustSubmit(t, s)
	c := claimAs(t, db, claimant)
	db.Exec(t, `create function time_out() returns trigger language plpgsql as $$ begin
		if new.error_message = 'slow' then raise exception 'x' using errcode = '57014'; end if; return new; end $$;
		create trigger time_out before insert on report_logs for each row execute function time_out()`)
	report := task.Report{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: task.SentOK}
	own, slow := report, report
	own.CallerID, slow.CallerID, slow.Message = claimant, stranger, "slow"
	outs, errs := db.Tasks.Report([]*tasks.Report{storetest.Report(slow), storetest.Report(own), storetest.Report(own)})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]))
	require.NoError(t, errs[1])
	require.NoError(t, errs[2])
	require.Equal(t, []task.Verdict{task.Applied, task.Already}, []task.Verdict{outs[1].Verdict, outs[2].Verdict}, "each report is decided once")
	require.Equal(t, 2, db.Count(t, `select count(*) from report_logs`))
}
