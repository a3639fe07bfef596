package tasks_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func mustPause(t *testing.T, db *storetest.DB, queue string, until time.Time) {
	t.Helper()
	_, err := db.Tasks.PauseQueue(t.Context(), tasks.Pause{Queue: queue, Until: until, Reason: "the gateway is down"}, storetest.Tester)
	require.NoError(t, err)
}

// mustPaused gives the pause that is in force.
func mustPaused(t *testing.T, db *storetest.DB, queue string) tasks.Pause {
	t.Helper()
	p, paused, err := db.Tasks.QueuePause(t.Context(), queue)
	require.NoError(t, err)
	require.True(t, paused)
	return p
}

// endPause ends the pause of the default queue, as time would.
func endPause(t *testing.T, db *storetest.DB) {
	t.Helper()
	db.Exec(t, `update queue_pauses set until = now()`)
}

func TestAPausedQueueHandsOutNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	other := storetest.Submission(func(s *tasks.Submission) { s.Queue = "other" })
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), other)
	held := db.MustClaim(t, "app", 1)
	mustPause(t, db, task.DefaultQueue, time.Time{})
	require.Empty(t, db.MustClaim(t, "app", 10))
	require.Len(t, db.Claim(t, func(r *tasks.ClaimRequest) { r.Queue = "other" }), 1, "other queues go on")
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: held[0].ID, AppID: "app", ClaimID: held[0].ClaimID, Outcome: task.SentOK}).Verdict)
	require.Len(t, db.MustSubmit(t, storetest.Submission()), 1, "tasks are taken")

	p := mustPaused(t, db, task.DefaultQueue)
	require.Equal(t, "the gateway is down", p.Reason)
	require.Equal(t, "tester", p.PausedBy)
	require.True(t, p.ByHand)
	require.True(t, p.Until.IsZero())
	all, err := db.Tasks.QueuePauses(t.Context())
	require.NoError(t, err)
	require.Equal(t, []tasks.Pause{p}, all)

	by := storetest.Tester
	by.Reason = "it is up"
	p, err = db.Tasks.ResumeQueue(t.Context(), task.DefaultQueue, by)
	require.NoError(t, err)
	require.Equal(t, 2, p.Pending)
	require.Len(t, db.MustClaim(t, "app", 10), 2)
	_, err = db.Tasks.ResumeQueue(t.Context(), task.DefaultQueue, by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))

	log := db.Actions(t, "queue/default")
	require.Equal(t, []string{"queue.pause", "queue.resume"}, storetest.ActionNames(log))
	require.Nil(t, log[0].Before)
	require.JSONEq(t, `{"reason":"the gateway is down","paused_by":"tester"}`, string(log[0].After))
	require.Equal(t, "the gateway is down", log[0].Reason)
	require.Equal(t, log[0].After, log[1].Before)
	require.Nil(t, log[1].After)
	require.Equal(t, "it is up", log[1].Reason)
}

func TestAPauseEndsByItselfAndSweepTellsWhatWaits(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, other := storetest.OpenAt(t, url), storetest.OpenAt(t, url)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission())
	until := time.Now().Add(time.Hour)
	mustPause(t, db, task.DefaultQueue, until)
	mustPause(t, db, "empty", until.Add(time.Minute))
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.WithinDuration(t, until, swept.Next, time.Millisecond)
	p := mustPaused(t, db, task.DefaultQueue)
	require.InDelta(t, time.Hour, p.Left, float64(10*time.Second))

	endPause(t, db)
	p, paused, err := db.Tasks.QueuePause(t.Context(), task.DefaultQueue)
	require.NoError(t, err)
	require.False(t, paused)
	require.False(t, p.Until.IsZero(), "it is still there to be seen")
	require.LessOrEqual(t, p.Left, time.Duration(0))
	all, err := db.Tasks.QueuePauses(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)

	told := make(chan tasks.PendingByQueue, 10)
	var sweeps sync.WaitGroup
	for i := range cap(told) {
		sweeps.Go(func() {
			swept, err := []*storetest.DB{db, other}[i%2].Tasks.Sweep(t.Context(), 10)
			require.NoError(t, err)
			told <- swept.Pending
		})
	}
	sweeps.Wait()
	close(told)
	sum := tasks.PendingByQueue{}
	for touched := range told {
		for queue, n := range touched {
			sum[queue] += n
		}
	}
	require.Equal(t, tasks.PendingByQueue{task.DefaultQueue: 2, "empty": 0}, sum, "one of all sweeps tells")
	require.Zero(t, db.Count(t, `select count(*) from queue_pauses`))
	require.Len(t, db.MustClaim(t, "app", 10), 2)
}

func TestAClaimThatFindsAPauseOverTellsTheOthersWhoWait(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(func(s *tasks.Submission) { s.Queue = "other" }))
	mustPause(t, db, task.DefaultQueue, time.Now().Add(time.Hour))
	mustPause(t, db, "other", time.Time{})
	_, err := db.Tasks.ResumeQueue(t.Context(), "other", storetest.Tester) // by a process that dies before it tells anybody
	require.NoError(t, err)
	claimed, touched, err := db.Tasks.Claim(t.Context(), tasks.ClaimRequest{Queue: "third", AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Empty(t, claimed)
	require.Equal(t, tasks.PendingByQueue{"other": 1}, touched)
	require.Empty(t, db.MustClaim(t, "app", 10))
}

func TestAFunctionsPauseGivesWayToAnOperatorsAndShortensNone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	soon, late := now.Add(time.Hour), now.Add(2*time.Hour)
	for name, c := range map[string]struct {
		has    *tasks.Pause // nil = none, else by hand or by a function
		over   bool
		wants  time.Time
		wins   bool
		reason string
	}{
		"there is none":                     {wants: soon, wins: true},
		"its own end is past":               {wants: now.Add(-time.Second)},
		"by hand and shorter":               {has: &tasks.Pause{Until: soon, ByHand: true}, wants: late},
		"by hand and open":                  {has: &tasks.Pause{ByHand: true}, wants: late},
		"by hand and over":                  {has: &tasks.Pause{Until: soon, ByHand: true}, over: true, wants: late, wins: true},
		"by a function and shorter":         {has: &tasks.Pause{Until: soon}, wants: late, wins: true},
		"by a function and longer":          {has: &tasks.Pause{Until: late}, wants: soon},
		"by a function and as long":         {has: &tasks.Pause{Until: soon}, wants: soon},
		"by a function and open":            {has: &tasks.Pause{}, wants: late},
		"by a function, and now open":       {has: &tasks.Pause{Until: late}, wins: true},
		"by a function and over, now open":  {has: &tasks.Pause{Until: late}, over: true, wins: true},
		"by a function and over, now short": {has: &tasks.Pause{Until: late}, over: true, wants: soon, wins: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			if c.has != nil && c.has.ByHand {
				mustPause(t, db, "q", c.has.Until)
			} else if c.has != nil {
				require.NoError(t, db.Tasks.PauseQueueAs(t.Context(), tasks.Pause{Queue: "q", Until: c.has.Until, Reason: "first"}, "wechat"))
			}
			if c.over {
				endPause(t, db)
			}
			require.NoError(t, db.Tasks.PauseQueueAs(t.Context(), tasks.Pause{Queue: "q", Until: c.wants, Reason: "second"}, "wechat"))
			p, _, err := db.Tasks.QueuePause(t.Context(), "q")
			require.NoError(t, err)
			require.Equal(t, c.wins, p.Reason == "second", "%+v", p)
			if c.wins {
				require.Equal(t, "wechat", p.PausedBy)
				require.False(t, p.ByHand)
				require.WithinDuration(t, c.wants, p.Until, time.Millisecond)
			}
		})
	}
}

func TestAnOperatorsPauseReplacesAnyAndMustEndInTheFuture(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	require.NoError(t, db.Tasks.PauseQueueAs(t.Context(), tasks.Pause{Queue: "q", Reason: "quota"}, "wechat"))
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	mustPause(t, db, "q", until)
	mustPause(t, db, "q", until)
	require.True(t, mustPaused(t, db, "q").ByHand)
	_, err := db.Tasks.PauseQueue(t.Context(), tasks.Pause{Queue: "q", Until: time.Now().Add(-time.Hour), Reason: "x"}, storetest.Tester)
	require.Equal(t, task.CodeInvalid, task.CodeOf(err))
	require.True(t, until.Equal(mustPaused(t, db, "q").Until), "what is refused changes nothing")
	log := db.Actions(t, "queue/q")
	require.Equal(t, []string{"queue.pause"}, storetest.ActionNames(log), "the one that changed nothing is not told")
	require.JSONEq(t, `{"reason":"quota","paused_by":"wechat"}`, string(log[0].Before))
}

func TestAPausedQueueTeachesClaimsNothing(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission())
	claimed := db.MustClaim(t, "app", 1)
	for range tasks.SlowInARow {
		db.Tasks.ObserveClaim(task.DefaultQueue, claimed, time.Minute)
	}
	lanes := db.Tasks.Marks(task.DefaultQueue, time.Now())
	require.NotEmpty(t, lanes)
	mustPause(t, db, task.DefaultQueue, time.Time{})
	require.Empty(t, db.MustClaim(t, "app", 1), "also above the floors nothing is handed out")
	db.Tasks.ObserveClaim(task.DefaultQueue, nil, time.Millisecond)
	buckets, slow := db.Tasks.ObservedOf(task.DefaultQueue)
	require.Equal(t, lanes, buckets)
	require.GreaterOrEqual(t, slow, tasks.SlowInARow, "quick and empty says nothing of how slow claims are")
	_, err := db.Tasks.ResumeQueue(t.Context(), task.DefaultQueue, storetest.Tester)
	require.NoError(t, err)
	require.Len(t, db.MustClaim(t, "app", 1), 1)
}

// After a pause no claim that began later gets anything, whoever claims beside it.
func TestNoClaimThatBeginsAfterAPauseGetsATask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	doors := []*storetest.DB{storetest.OpenAt(t, url), storetest.OpenAt(t, url)}
	subs := make([]*tasks.Submission, 400)
	for i := range subs {
		subs[i] = storetest.Submission()
	}
	doors[0].MustSubmit(t, subs...)
	begun, stop := make(chan struct{}, 8), make(chan struct{})
	var claimers sync.WaitGroup
	for i := range cap(begun) {
		claimers.Go(func() {
			for first := true; ; first = false {
				select {
				case <-stop:
					return
				default:
				}
				_, _, err := doors[i%2].Tasks.Claim(t.Context(), tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
				require.NoError(t, err)
				if first {
					begun <- struct{}{}
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	mustPause(t, doors[0], task.DefaultQueue, time.Time{})
	require.Empty(t, doors[1].MustClaim(t, "after", 10))
	close(stop)
	claimers.Wait()
	left := doors[0].Count(t, `select count(*) from task_live where state = 1`)
	require.Empty(t, doors[0].MustClaim(t, "after", 10))
	_, err := doors[1].Tasks.ResumeQueue(t.Context(), task.DefaultQueue, storetest.Tester)
	require.NoError(t, err)
	require.Len(t, doors[0].MustClaim(t, "after", 400), left, "all that was left is there, each once")
}

func TestQueuesAreListedWithTheirPauseAndTheirTasks(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	queues, err := db.Tasks.Queues(t.Context())
	require.NoError(t, err)
	require.Empty(t, queues)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(func(s *tasks.Submission) { s.Queue, s.SendAt = "b", time.Now().Add(time.Hour) }))
	db.MustClaim(t, "app", 1)
	mustPause(t, db, "b", time.Now().Add(time.Hour))
	mustPause(t, db, "a", time.Time{})
	mustPause(t, db, "over", time.Now().Add(time.Hour))
	db.Exec(t, `update queue_pauses set until = now() where queue = 'over'`)
	queues, err = db.Tasks.Queues(t.Context())
	require.NoError(t, err)
	require.Len(t, queues, 3)
	s := db.MustCount(t)
	require.Equal(t, "a", queues[0].Queue)
	require.Equal(t, tasks.LiveCounts{}, queues[0].LiveCounts)
	require.Equal(t, mustPaused(t, db, "a"), *queues[0].Pause)
	require.Equal(t, s.Queues[0].LiveCounts, queues[1].LiveCounts)
	require.EqualValues(t, 1, queues[1].Scheduled)
	require.Equal(t, "default", queues[2].Queue)
	require.Nil(t, queues[2].Pause)
	require.EqualValues(t, 1, queues[2].Processing)
	require.NotNil(t, queues[2].OldestPending)
}

func TestAPauseThatEndsInASweepThatMissesAPartitionIsToldOf(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url)
	db.MustSubmit(t, storetest.Submission())
	db.Claim(t)
	db.ExpireLeases(t)
	db.MustSubmit(t, storetest.Submission(func(s *tasks.Submission) { s.Queue = "paused" }))
	mustPause(t, db, "paused", time.Now().Add(time.Hour))
	endPause(t, db)
	_, err := storetest.Owner(t, url).Exec(t.Context(), `do $$ declare p text; begin
		for p in select inhrelid::regclass from pg_inherits where inhparent = 'report_logs'::regclass loop
			execute 'drop table ' || p;
		end loop;
	end $$`)
	require.NoError(t, err)
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{"paused": 1, task.DefaultQueue: 1}, swept.Pending)
}
