package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

// claimAs claims the only pending task as a caller.
func (db *DB) claimAs(t *testing.T, caller int64) Claimed {
	t.Helper()
	claimed, _, err := db.Claim(t.Context(), ClaimRequest{
		Queue: task.DefaultQueue, AppID: "app", CallerID: caller, Limit: 1, Lease: time.Minute, Request: []byte(`{}`),
	})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	return claimed[0]
}

func (db *DB) reportAs(t *testing.T, caller int64, c Claimed, outcome task.Outcome) task.Verdict {
	t.Helper()
	return db.mustReport(t, task.Report{TaskID: c.ID, AppID: "app", CallerID: caller, ClaimID: c.ClaimID, Outcome: outcome}).Verdict
}

func (db *DB) sweepAll(t *testing.T) {
	t.Helper()
	db.lapse(t)
	_, err := db.Sweep(t.Context(), 500)
	require.NoError(t, err)
}

const claimant, stranger = 5, 6

// The newest claim stays its caller's after it ended, wherever its task is.
func TestLateSuccessCountsForTheClaimantOnly(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*Submission{
		"pending again": message(),
		"held":          message(func(s *Submission) { s.OnUnknown = task.Hold }),
		"failed":        message(func(s *Submission) { s.OnUnknown = task.Fail }),
		"exhausted":     message(func(s *Submission) { s.MaxRetries = 0 }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			db.mustSubmit(t, s)
			c := db.claimAs(t, claimant)
			db.sweepAll(t)
			require.Equal(t, task.Stale, db.reportAs(t, stranger, c, task.SentOK))
			require.Equal(t, task.Applied, db.reportAs(t, claimant, c, task.SentOK))
			require.Equal(t, task.Stale, db.reportAs(t, stranger, c, task.SentOK), "nor is it told that this was reported")
			require.Equal(t, task.Already, db.reportAs(t, claimant, c, task.SentOK))
		})
	}
}

func TestClaimIsOwnedByWhoClaimedLast(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.mustSubmit(t, message(func(s *Submission) { s.MaxRetries = 0 }))
	first := db.claimAs(t, stranger)
	require.Equal(t, task.Applied, db.reportAs(t, stranger, first, task.Released))
	second := db.claimAs(t, claimant)
	for _, claim := range []int64{first.ClaimID, second.ClaimID, 0} {
		_, err := db.Extend(t.Context(), Extension{TaskID: first.ID, AppID: "app", CallerID: stranger, ClaimID: claim, Lease: time.Hour}, nil)
		require.Equal(t, task.CodeStaleClaim, task.CodeOf(err))
	}
	_, err := db.Extend(t.Context(), Extension{TaskID: first.ID, AppID: "app", CallerID: claimant, ClaimID: second.ClaimID, Lease: time.Hour}, nil)
	require.NoError(t, err)
	require.Equal(t, task.Stale, db.reportAs(t, stranger, second, task.SentFailed))

	t.Run("when its task is final and comes back to life", func(t *testing.T) {
		require.Equal(t, task.Applied, db.reportAs(t, claimant, second, task.SentFailed))
		_, err := db.RetryFailed(t.Context(), first.ID, Operator{Name: "ann"})
		require.NoError(t, err)
		require.EqualValues(t, claimant, *db.mustTask(t, first.ID).ClaimedBy)
		require.Equal(t, task.Stale, db.reportAs(t, stranger, second, task.SentOK))
		require.Equal(t, task.Stale, db.reportAs(t, claimant, first, task.SentOK), "an older claim")
	})
}

// A process of an older version writes neither claimed_by nor owned_claim.
func TestClaimOfAnOlderVersionIsOpenToItsApp(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message()
	db.mustSubmit(t, s)
	oldClaim := func(id int64) Claimed {
		db.exec(t, `update task_live set state = 2, claim_id = $1, app_id = 'app', due_at = now() + interval '1 minute', ended = 0`, id)
		return Claimed{ID: s.ID, ClaimID: id}
	}
	c := oldClaim(1 << 40)
	_, err := db.Extend(t.Context(), Extension{TaskID: s.ID, AppID: "app", CallerID: claimant, Lease: time.Hour}, nil)
	require.NoError(t, err)
	require.Equal(t, task.Applied, db.reportAs(t, claimant, c, task.Released))

	require.Equal(t, task.Applied, db.reportAs(t, stranger, db.claimAs(t, stranger), task.Released))
	c = oldClaim(1<<40 + 1) // claimed_by is still the stranger
	_, err = db.Extend(t.Context(), Extension{TaskID: s.ID, AppID: "app", CallerID: claimant, Lease: time.Hour}, nil)
	require.NoError(t, err)
	require.Equal(t, task.Applied, db.reportAs(t, claimant, c, task.SentOK))
	require.Equal(t, 1, db.count(t, `select count(*) from task_done where claimed_by is null and status = 2`))
	require.Equal(t, task.Already, db.reportAs(t, claimant, c, task.SentOK))
}

func TestStrangersReportsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message()
	db.mustSubmit(t, s)
	strange := func() *Report {
		return &Report{Request: []byte(`{"app_id":"app"}`), Report: task.Report{TaskID: s.ID, AppID: "app", CallerID: stranger, Outcome: task.SentOK, Message: "mine"}}
	}
	c := db.claimAs(t, claimant)
	for range 3 {
		outs, errs := db.Report([]*Report{strange(), strange(), {Request: []byte(`{}`), Report: task.Report{
			TaskID: s.ID, AppID: "app", CallerID: claimant, ClaimID: 1 << 40, Outcome: task.SentOK,
		}}})
		for i := range outs {
			require.NoError(t, errs[i])
			require.Equal(t, task.Stale, outs[i].Verdict)
		}
	}
	require.Equal(t, 1, db.count(t, `select count(*) from report_logs where caller_id = 6`), "evidence of the first is kept")
	require.Equal(t, 3, db.count(t, `select count(*) from report_logs where caller_id is null`), "and all reports of the claim's caller")
	require.Equal(t, task.Applied, db.reportAs(t, claimant, c, task.SentOK))
	events, _, err := db.Timeline(t.Context(), s.ID, TimelinePlace{}, 10)
	require.NoError(t, err)
	var told []Event
	for _, e := range events {
		if e.Event == EventReport && e.CallerID != nil && *e.CallerID == stranger {
			told = append(told, e)
		}
	}
	require.Len(t, told, 1)
	require.Equal(t, "stale_claim", told[0].Verdict)
	require.Equal(t, "mine", told[0].Message)
}
