package store

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) mustPause(t *testing.T, queue string, until time.Time) {
	t.Helper()
	_, err := db.PauseQueue(t.Context(), Pause{Queue: queue, Until: until, Reason: "the gateway is down"}, tester)
	require.NoError(t, err)
}

// mustPaused gives the pause that is in force.
func (db *DB) mustPaused(t *testing.T, queue string) Pause {
	t.Helper()
	p, paused, err := db.QueuePause(t.Context(), queue)
	require.NoError(t, err)
	require.True(t, paused)
	return p
}

// endPause ends the pause of the default queue, as time would.
func (db *DB) endPause(t *testing.T) {
	t.Helper()
	db.exec(t, `update queue_pauses set until = now()`)
}

func TestAPausedQueueHandsOutNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	db := open(t)
	other := message(func(s *Submission) { s.Queue = "other" })
	db.mustSubmit(t, message(), message(), other)
	held := db.mustClaim(t, "app", 1)
	db.mustPause(t, task.DefaultQueue, time.Time{})
	require.Empty(t, db.mustClaim(t, "app", 10))
	require.Len(t, db.claim(t, func(r *ClaimRequest) { r.Queue = "other" }), 1, "other queues go on")
	require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: held[0].ID, AppID: "app", ClaimID: held[0].ClaimID, Outcome: task.SentOK}).Verdict)
	require.Len(t, db.mustSubmit(t, message()), 1, "tasks are taken")

	p := db.mustPaused(t, task.DefaultQueue)
	require.Equal(t, "the gateway is down", p.Reason)
	require.Equal(t, "tester", p.PausedBy)
	require.True(t, p.ByHand)
	require.True(t, p.Until.IsZero())
	all, err := db.QueuePauses(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Pause{p}, all)

	by := tester
	by.Reason = "it is up"
	p, err = db.ResumeQueue(t.Context(), task.DefaultQueue, by)
	require.NoError(t, err)
	require.Equal(t, 2, p.Pending)
	require.Len(t, db.mustClaim(t, "app", 10), 2)
	_, err = db.ResumeQueue(t.Context(), task.DefaultQueue, by)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))

	log := db.actions(t, "queue/default")
	require.Equal(t, []string{"queue.pause", "queue.resume"}, words(log))
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
	db, other := openAt(t, url), openAt(t, url)
	db.mustSubmit(t, message(), message())
	until := time.Now().Add(time.Hour)
	db.mustPause(t, task.DefaultQueue, until)
	db.mustPause(t, "empty", until.Add(time.Minute))
	swept, err := db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.WithinDuration(t, until, swept.Next, time.Millisecond)
	p := db.mustPaused(t, task.DefaultQueue)
	require.InDelta(t, time.Hour, p.Left, float64(10*time.Second))

	db.endPause(t)
	p, paused, err := db.QueuePause(t.Context(), task.DefaultQueue)
	require.NoError(t, err)
	require.False(t, paused)
	require.False(t, p.Until.IsZero(), "it is still there to be seen")
	require.LessOrEqual(t, p.Left, time.Duration(0))
	all, err := db.QueuePauses(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)

	told := make(chan PendingByQueue, 10)
	var sweeps sync.WaitGroup
	for i := range cap(told) {
		sweeps.Go(func() {
			swept, err := []*DB{db, other}[i%2].Sweep(t.Context(), 10)
			require.NoError(t, err)
			told <- swept.Pending
		})
	}
	sweeps.Wait()
	close(told)
	sum := PendingByQueue{}
	for touched := range told {
		for queue, n := range touched {
			sum[queue] += n
		}
	}
	require.Equal(t, PendingByQueue{task.DefaultQueue: 2, "empty": 0}, sum, "one of all sweeps tells")
	require.Zero(t, db.count(t, `select count(*) from queue_pauses`))
	require.Len(t, db.mustClaim(t, "app", 10), 2)
}

func TestAClaimThatFindsAPauseOverTellsTheOthersWhoWait(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.mustSubmit(t, message(), message(), message(func(s *Submission) { s.Queue = "other" }))
	db.mustPause(t, task.DefaultQueue, time.Now().Add(time.Hour))
	db.mustPause(t, "other", time.Time{})
	_, err := db.ResumeQueue(t.Context(), "other", tester) // by a process that dies before it tells anybody
	require.NoError(t, err)
	claimed, touched, err := db.Claim(t.Context(), ClaimRequest{Queue: "third", AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Empty(t, claimed)
	require.Equal(t, PendingByQueue{"other": 1}, touched)
	require.Empty(t, db.mustClaim(t, "app", 10))
}

func TestAFunctionsPauseGivesWayToAnOperatorsAndShortensNone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	soon, late := now.Add(time.Hour), now.Add(2*time.Hour)
	for name, c := range map[string]struct {
		has    *Pause // nil = none, else by hand or by a function
		over   bool
		wants  time.Time
		wins   bool
		reason string
	}{
		"there is none":                     {wants: soon, wins: true},
		"its own end is past":               {wants: now.Add(-time.Second)},
		"by hand and shorter":               {has: &Pause{Until: soon, ByHand: true}, wants: late},
		"by hand and open":                  {has: &Pause{ByHand: true}, wants: late},
		"by hand and over":                  {has: &Pause{Until: soon, ByHand: true}, over: true, wants: late, wins: true},
		"by a function and shorter":         {has: &Pause{Until: soon}, wants: late, wins: true},
		"by a function and longer":          {has: &Pause{Until: late}, wants: soon},
		"by a function and as long":         {has: &Pause{Until: soon}, wants: soon},
		"by a function and open":            {has: &Pause{}, wants: late},
		"by a function, and now open":       {has: &Pause{Until: late}, wins: true},
		"by a function and over, now open":  {has: &Pause{Until: late}, over: true, wins: true},
		"by a function and over, now short": {has: &Pause{Until: late}, over: true, wants: soon, wins: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			if c.has != nil && c.has.ByHand {
				db.mustPause(t, "q", c.has.Until)
			} else if c.has != nil {
				require.NoError(t, db.PauseQueueAs(t.Context(), Pause{Queue: "q", Until: c.has.Until, Reason: "first"}, "wechat"))
			}
			if c.over {
				db.endPause(t)
			}
			require.NoError(t, db.PauseQueueAs(t.Context(), Pause{Queue: "q", Until: c.wants, Reason: "second"}, "wechat"))
			p, _, err := db.QueuePause(t.Context(), "q")
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
	db := open(t)
	require.NoError(t, db.PauseQueueAs(t.Context(), Pause{Queue: "q", Reason: "quota"}, "wechat"))
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	db.mustPause(t, "q", until)
	db.mustPause(t, "q", until)
	require.True(t, db.mustPaused(t, "q").ByHand)
	_, err := db.PauseQueue(t.Context(), Pause{Queue: "q", Until: time.Now().Add(-time.Hour), Reason: "x"}, tester)
	require.Equal(t, task.CodeInvalid, task.CodeOf(err))
	require.True(t, until.Equal(db.mustPaused(t, "q").Until), "what is refused changes nothing")
	log := db.actions(t, "queue/q")
	require.Equal(t, []string{"queue.pause"}, words(log), "the one that changed nothing is not told")
	require.JSONEq(t, `{"reason":"quota","paused_by":"wechat"}`, string(log[0].Before))
}

func TestAPausedQueueTeachesClaimsNothing(t *testing.T) {
	t.Parallel()
	db := open(t)
	db.mustSubmit(t, message(), message())
	claimed := db.mustClaim(t, "app", 1)
	for range slowInARow {
		db.marks.observe(task.DefaultQueue, claimed, time.Minute)
	}
	lanes := db.marks.of(task.DefaultQueue, time.Now())
	require.NotEmpty(t, lanes)
	db.mustPause(t, task.DefaultQueue, time.Time{})
	require.Empty(t, db.mustClaim(t, "app", 1), "also above the floors nothing is handed out")
	db.marks.observe(task.DefaultQueue, nil, time.Millisecond)
	require.Equal(t, lanes, db.marks.queues[task.DefaultQueue].buckets)
	require.GreaterOrEqual(t, db.marks.queues[task.DefaultQueue].slow, slowInARow, "quick and empty says nothing of how slow claims are")
	_, err := db.ResumeQueue(t.Context(), task.DefaultQueue, tester)
	require.NoError(t, err)
	require.Len(t, db.mustClaim(t, "app", 1), 1)
}

// After a pause no claim that began later gets anything, whoever claims beside it.
func TestNoClaimThatBeginsAfterAPauseGetsATask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	doors := []*DB{openAt(t, url), openAt(t, url)}
	subs := make([]*Submission, 400)
	for i := range subs {
		subs[i] = message()
	}
	doors[0].mustSubmit(t, subs...)
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
				_, _, err := doors[i%2].Claim(t.Context(), ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
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
	doors[0].mustPause(t, task.DefaultQueue, time.Time{})
	require.Empty(t, doors[1].mustClaim(t, "after", 10))
	close(stop)
	claimers.Wait()
	left := doors[0].count(t, `select count(*) from task_live where state = 1`)
	require.Empty(t, doors[0].mustClaim(t, "after", 10))
	_, err := doors[1].ResumeQueue(t.Context(), task.DefaultQueue, tester)
	require.NoError(t, err)
	require.Len(t, doors[0].mustClaim(t, "after", 400), left, "all that was left is there, each once")
}

func TestQueuesAreListedWithTheirPauseAndTheirTasks(t *testing.T) {
	t.Parallel()
	db := open(t)
	queues, err := db.Queues(t.Context())
	require.NoError(t, err)
	require.Empty(t, queues)
	db.mustSubmit(t, message(), message(), message(func(s *Submission) { s.Queue, s.SendAt = "b", time.Now().Add(time.Hour) }))
	db.mustClaim(t, "app", 1)
	db.mustPause(t, "b", time.Now().Add(time.Hour))
	db.mustPause(t, "a", time.Time{})
	db.mustPause(t, "over", time.Now().Add(time.Hour))
	db.exec(t, `update queue_pauses set until = now() where queue = 'over'`)
	queues, err = db.Queues(t.Context())
	require.NoError(t, err)
	require.Len(t, queues, 3)
	s := db.mustCount(t)
	require.Equal(t, "a", queues[0].Queue)
	require.Equal(t, LiveCounts{}, queues[0].LiveCounts)
	require.Equal(t, db.mustPaused(t, "a"), *queues[0].Pause)
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
	db := openAt(t, url)
	db.mustSubmit(t, message())
	db.claim(t)
	db.lapse(t)
	db.mustSubmit(t, message(func(s *Submission) { s.Queue = "paused" }))
	db.mustPause(t, "paused", time.Now().Add(time.Hour))
	db.endPause(t)
	_, err := owner(t, url).Exec(t.Context(), `do $$ declare p text; begin
		for p in select inhrelid::regclass from pg_inherits where inhparent = 'report_logs'::regclass loop
			execute 'drop table ' || p;
		end loop;
	end $$`)
	require.NoError(t, err)
	swept, err := db.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, PendingByQueue{"paused": 1, task.DefaultQueue: 1}, swept.Pending)
}
