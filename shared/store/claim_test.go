package store

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func TestNewTasksComeBeforeRetriesAndPriorityBeforeBoth(t *testing.T) {
	t.Parallel()
	db := open(t)
	retried, fresh, urgent := message(), message(), message(func(s *Submission) { s.Priority = 1 })
	db.mustSubmit(t, retried)
	first := db.claim(t)
	require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: retried.ID, AppID: "app", ClaimID: first[0].ClaimID, Outcome: task.SentFailed, ShouldRetry: true}).Verdict)
	second := message()
	db.mustSubmit(t, fresh, second, urgent)

	var order []task.ID
	for _, c := range db.claim(t) {
		order = append(order, c.ID)
	}
	require.Equal(t, []task.ID{urgent.ID, fresh.ID, second.ID, retried.ID}, order)
}

func TestAClaimTakesFromItsQueueOnly(t *testing.T) {
	t.Parallel()
	db := open(t)
	other := message(func(s *Submission) { s.Queue = "验证码" })
	db.mustSubmit(t, other, message())
	require.Len(t, db.claim(t), 1)
	claimed := db.claim(t, func(r *ClaimRequest) { r.Queue = "验证码" })
	require.Len(t, claimed, 1)
	require.Equal(t, other.ID, claimed[0].ID)
}

func TestNoTaskIsClaimedTwiceByClaimersAtTheSameTime(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	instances := []*DB{openAt(t, url), openAt(t, url)}
	const tasks = 600
	subs := make([]*Submission, tasks)
	for i := range subs {
		subs[i] = message()
	}
	instances[0].mustSubmit(t, subs...)
	var mu sync.Mutex
	seen := map[task.ID]int{}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for {
				claimed, _, err := instances[n%2].Claim(t.Context(), ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 7, Lease: time.Minute, Request: []byte(`{}`)})
				if err != nil || len(claimed) == 0 {
					return
				}
				mu.Lock()
				for _, c := range claimed {
					seen[c.ID]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	require.Len(t, seen, tasks)
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
}

func TestAPollThatFindsNothingIsALookAndNoClaim(t *testing.T) {
	t.Parallel()
	db := open(t)
	require.Empty(t, db.claim(t))
	require.Zero(t, db.claimIDs.last, "an id was taken")
	db.mustSubmit(t, message())
	require.Len(t, db.claim(t), 1)
	require.NotZero(t, db.claimIDs.last)
	require.True(t, db.nonEmpty.has(task.DefaultQueue))

	require.Empty(t, db.claim(t))
	require.False(t, db.nonEmpty.has(task.DefaultQueue))
	db.lapse(t)
	require.Len(t, db.claim(t), 1, "what fell due is seen by the look, too")
	require.Empty(t, db.claim(t, func(r *ClaimRequest) { r.WokenUp = true }))
}

func TestAShortClaimPromotesWhatIsDueFirst(t *testing.T) {
	t.Parallel()
	db := open(t)
	zombie := message()
	db.mustSubmit(t, zombie)
	lost := db.claim(t)
	db.lapse(t)
	again := db.claim(t, func(r *ClaimRequest) { r.AppID = "other" })
	require.Len(t, again, 1, "pollers alone keep the job going")
	require.Equal(t, zombie.ID, again[0].ID)
	require.Equal(t, int16(1), again[0].RetryCount)
	require.NotEqual(t, again[0].ClaimID, lost[0].ClaimID)
	require.Equal(t, task.Stale, db.mustReport(t, task.Report{TaskID: zombie.ID, AppID: "app", ClaimID: lost[0].ClaimID, Outcome: task.SentOK}).Verdict)
	require.Equal(t, 1, db.count(t, `select count(*) from report_logs where verdict = 'timeout_retry' and app_id = 'app' and claim_id = $1 and error_message = '处理超时，自动重试'`, lost[0].ClaimID))
	require.Equal(t, 1, db.count(t, `select count(*) from report_logs where verdict = 'stale_claim' and claim_id = $1`, lost[0].ClaimID), "a stale report is kept as evidence")
}

func TestAnExtensionLengthensTheLeaseOfTheLiveClaimOnly(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message()
	db.mustSubmit(t, s)
	c := db.claim(t)[0]
	longer, err := db.Extend(t.Context(), Extension{TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID, Lease: time.Hour, Sending: true}, nil)
	require.NoError(t, err)
	require.WithinDuration(t, c.LeaseUntil.Add(59*time.Minute), longer.LeaseUntil, 10*time.Second)
	require.True(t, longer.Sending)
	shorter, err := db.Extend(t.Context(), Extension{TaskID: s.ID, AppID: "app", Lease: time.Minute}, []string{"default"})
	require.NoError(t, err)
	require.Equal(t, longer.LeaseUntil, shorter.LeaseUntil, "never shortened")
	require.True(t, shorter.Sending, "the mark stays")

	for name, e := range map[string]Extension{
		"another app":   {TaskID: s.ID, AppID: "other", ClaimID: c.ClaimID, Lease: time.Hour},
		"another claim": {TaskID: s.ID, AppID: "app", ClaimID: c.ClaimID + 1, Lease: time.Hour},
	} {
		_, err = db.Extend(t.Context(), e, nil)
		require.Equal(t, task.CodeStaleClaim, task.CodeOf(err), name)
	}
	_, err = db.Extend(t.Context(), Extension{TaskID: s.ID, AppID: "app", Lease: time.Hour}, []string{"other"})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Extend(t.Context(), Extension{TaskID: task.NewID(), AppID: "app", Lease: time.Hour}, nil)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestAnUnmarkedClaimThatPromisedToMarkIsSafeToResend(t *testing.T) {
	t.Parallel()
	db := open(t)
	hold := func(s *Submission) { s.OnUnknown = task.Hold }
	unmarked, marked, silent := message(hold), message(hold), message(hold)
	marks := func(r *ClaimRequest) { r.MarksSending, r.Limit = true, 2 }
	db.mustSubmit(t, unmarked, marked)
	require.Len(t, db.claim(t, marks), 2)
	_, err := db.Extend(t.Context(), Extension{TaskID: marked.ID, AppID: "app", Lease: time.Minute, Sending: true}, nil)
	require.NoError(t, err)
	db.mustSubmit(t, silent)
	require.Len(t, db.claim(t), 1)
	db.lapse(t)
	swept, err := db.Sweep(t.Context(), 500)
	require.NoError(t, err)
	require.Equal(t, 3, swept.Rows)
	require.Equal(t, task.Pending, db.mustTask(t, unmarked.ID).State)
	require.Equal(t, task.Held, db.mustTask(t, marked.ID).State)
	require.Equal(t, task.Held, db.mustTask(t, silent.ID).State, "without the promise every lapse is unknown")
}

func TestSlowClaimsLeaveFloorsThatNeverMakeAnEmptyAnswerALie(t *testing.T) {
	t.Parallel()
	db := open(t)
	urgent, first := message(func(s *Submission) { s.Priority = 0 }), message()
	db.mustSubmit(t, first, message())
	one := func(r *ClaimRequest) { r.Limit = 1 }
	claimed := db.claim(t, one)
	clear(db.marks.queues) // on a busy machine that one was slow itself
	for range slowInARow {
		require.Empty(t, db.marks.of(task.DefaultQueue, time.Now()), "one slow claim is no pinned snapshot")
		db.marks.observe(task.DefaultQueue, claimed, time.Minute)
	}
	require.Len(t, db.marks.of(task.DefaultQueue, time.Now()), 1)
	require.Empty(t, db.marks.of(task.DefaultQueue, time.Now().Add(2*markLimit)), "floors end by themselves")

	db.mustSubmit(t, urgent)
	next := db.claim(t, one)
	require.Len(t, next, 1)
	require.NotEqual(t, urgent.ID, next[0].ID, "the lane that is known goes on")
	last := db.claim(t, one)
	require.Len(t, last, 1)
	require.Equal(t, urgent.ID, last[0].ID, "an empty look above the floors is followed by a plain one")
	db.marks.observe(task.DefaultQueue, last, time.Millisecond)
	require.Empty(t, db.marks.of(task.DefaultQueue, time.Now()), "health returns with the first quick claim")
}

func TestAClaimWhoseQueueHasFloorsOrGaveComesWithoutALook(t *testing.T) {
	t.Parallel()
	db := open(t)
	claimsDirectly := func(queue string) bool { return db.claimDirectly(ClaimRequest{Queue: queue}) }
	require.False(t, claimsDirectly("default"))
	require.True(t, db.claimDirectly(ClaimRequest{Queue: "default", WokenUp: true}))
	for range slowInARow {
		db.marks.observe("default", []Claimed{{ID: task.NewID(), Priority: task.DefaultPriority}}, time.Minute)
	}
	require.True(t, claimsDirectly("default"))

	db.mustSubmit(t, message(func(s *Submission) { s.Queue = "gave" }))
	for _, want := range []int{1, 0} {
		require.Len(t, db.claim(t, func(r *ClaimRequest) { r.Queue = "gave" }), want)
		require.Equal(t, want > 0, claimsDirectly("gave"))
	}
}
