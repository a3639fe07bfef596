package tasks_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func mustPause(t *testing.T, db *storetest.DB, queue string, until time.Time) {
	t.Helper()
	_, err := db.Tasks.PauseQueue(t.Context(), tasks.Pause{Queue: queue, Until: until, Reason: "the gateway is down"}, storetest.Tester)
	require.NoError(t, err)
}

// mustFindPause returns the pause of a queue, which must be in force.
func mustFindPause(t *testing.T, db *storetest.DB, queue string) tasks.Pause {
	t.Helper()
	p, paused, err := db.Tasks.QueuePause(t.Context(), queue)
	require.NoError(t, err)
	require.True(t, paused)
	return p
}

// expirePauses sets the end of all pauses to now.
func expirePauses(t *testing.T, db *storetest.DB) {
	t.Helper()
	db.Exec(t, `update queue_pauses set until = now()`)
}

func TestPausedQueueReturnsNothingUntilResumed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	other := storetest.Submission(storetest.InQueue("验证码"))
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), other)
	claimed := db.ClaimAs(t, "app", 1)
	mustPause(t, db, task.DefaultQueue, time.Time{})
	require.Empty(t, db.ClaimAs(t, "app", 10))
	require.Len(t, db.Claim(t, storetest.FromQueue("验证码")), 1, "other queues are not paused")
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: claimed[0].ID, AppID: "app", ClaimID: claimed[0].ClaimID, Outcome: task.SentOK}).Verdict)
	require.Len(t, db.MustSubmit(t, storetest.Submission()), 1, "tasks are accepted")

	p := mustFindPause(t, db, task.DefaultQueue)
	require.Equal(t, "the gateway is down", p.Reason)
	require.Equal(t, "tester", p.PausedBy)
	require.True(t, p.Manual)
	require.True(t, p.Until.IsZero())

	by := storetest.Tester
	by.Reason = "it is up"
	p, err := db.Tasks.ResumeQueue(t.Context(), task.DefaultQueue, by)
	require.NoError(t, err)
	require.Equal(t, 2, p.PendingTasks)
	require.Len(t, db.ClaimAs(t, "app", 10), 2)
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

func TestSweepReturnsPendingOfEndedPause(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission())
	until := time.Now().Add(time.Hour)
	mustPause(t, db, task.DefaultQueue, until)
	mustPause(t, db, "empty", until.Add(time.Minute))
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.WithinDuration(t, until, swept.Next, time.Millisecond)
	p := mustFindPause(t, db, task.DefaultQueue)
	require.InDelta(t, time.Hour, p.Left, float64(10*time.Second))

	expirePauses(t, db)
	p, paused, err := db.Tasks.QueuePause(t.Context(), task.DefaultQueue)
	require.NoError(t, err)
	require.False(t, paused)
	require.False(t, p.Until.IsZero(), "the row is kept until a sweep")
	require.LessOrEqual(t, p.Left, time.Duration(0))

	pending := make(chan tasks.PendingByQueue, 10)
	var sweeps sync.WaitGroup
	for i := range cap(pending) {
		sweeps.Go(func() {
			swept, err := []*storetest.DB{db, other}[i%2].Tasks.Sweep(t.Context(), 10)
			require.NoError(t, err)
			pending <- swept.Pending
		})
	}
	sweeps.Wait()
	close(pending)
	sum := tasks.PendingByQueue{}
	for byQueue := range pending {
		for queue, n := range byQueue {
			sum[queue] += n
		}
	}
	require.Equal(t, tasks.PendingByQueue{task.DefaultQueue: 2, "empty": 0}, sum, "only one of the sweeps returns the queue")
	require.Zero(t, db.Count(t, `select count(*) from queue_pauses`))
	require.Len(t, db.ClaimAs(t, "app", 10), 2)
}

func TestClaimReturnsPendingOfEndedPause(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(storetest.InQueue("other")))
	mustPause(t, db, task.DefaultQueue, time.Now().Add(time.Hour))
	mustPause(t, db, "other", time.Time{})
	_, err := db.Tasks.ResumeQueue(t.Context(), "other", storetest.Tester) // wakes no pollers, as if the process had died
	require.NoError(t, err)
	claimed, pending, err := db.Tasks.Claim(t.Context(), tasks.ClaimRequest{Queue: "third", AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`)})
	require.NoError(t, err)
	require.Empty(t, claimed)
	require.Equal(t, tasks.PendingByQueue{"other": 1}, pending)
	require.Empty(t, db.ClaimAs(t, "app", 10))
}

func TestAutomaticPauseReplacesNoManualOrLongerPause(t *testing.T) {
	t.Parallel()
	now := time.Now()
	soon, late := now.Add(time.Hour), now.Add(2*time.Hour)
	for name, c := range map[string]struct {
		old    *tasks.Pause // nil = none
		ended  bool         // the old pause has ended
		until  time.Time    // end of the new pause; zero = none
		stored bool         // the new pause is stored, and replaces the old one
	}{
		"no pause":                              {until: soon, stored: true},
		"an end in the past":                    {until: now.Add(-time.Second)},
		"manual and shorter":                    {old: &tasks.Pause{Until: soon, Manual: true}, until: late},
		"manual without end":                    {old: &tasks.Pause{Manual: true}, until: late},
		"manual and ended":                      {old: &tasks.Pause{Until: soon, Manual: true}, ended: true, until: late, stored: true},
		"automatic and shorter":                 {old: &tasks.Pause{Until: soon}, until: late, stored: true},
		"automatic and longer":                  {old: &tasks.Pause{Until: late}, until: soon},
		"automatic and as long":                 {old: &tasks.Pause{Until: soon}, until: soon},
		"automatic without end":                 {old: &tasks.Pause{}, until: late},
		"automatic, then without end":           {old: &tasks.Pause{Until: late}, stored: true},
		"automatic and ended, then without end": {old: &tasks.Pause{Until: late}, ended: true, stored: true},
		"automatic and ended, then shorter":     {old: &tasks.Pause{Until: late}, ended: true, until: soon, stored: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			if c.old != nil && c.old.Manual {
				mustPause(t, db, "q", c.old.Until)
			} else if c.old != nil {
				require.NoError(t, db.Tasks.PauseQueueAs(t.Context(), tasks.Pause{Queue: "q", Until: c.old.Until, Reason: "first"}, "wechat"))
			}
			if c.ended {
				expirePauses(t, db)
			}
			require.NoError(t, db.Tasks.PauseQueueAs(t.Context(), tasks.Pause{Queue: "q", Until: c.until, Reason: "second"}, "wechat"))
			p, _, err := db.Tasks.QueuePause(t.Context(), "q")
			require.NoError(t, err)
			require.Equal(t, c.stored, p.Reason == "second", "%+v", p)
			if c.stored {
				require.Equal(t, "wechat", p.PausedBy)
				require.False(t, p.Manual)
				require.WithinDuration(t, c.until, p.Until, time.Millisecond)
			}
		})
	}
}

func TestManualPauseReplacesAnyPauseAndMustEndInTheFuture(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	require.NoError(t, db.Tasks.PauseQueueAs(t.Context(), tasks.Pause{Queue: "q", Reason: "quota"}, "wechat"))
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	mustPause(t, db, "q", until)
	mustPause(t, db, "q", until)
	require.True(t, mustFindPause(t, db, "q").Manual)
	_, err := db.Tasks.PauseQueue(t.Context(), tasks.Pause{Queue: "q", Until: time.Now().Add(-time.Hour), Reason: "x"}, storetest.Tester)
	require.Equal(t, task.CodeInvalid, task.CodeOf(err))
	require.True(t, until.Equal(mustFindPause(t, db, "q").Until), "a refused pause changes nothing")
	log := db.Actions(t, "queue/q")
	require.Equal(t, []string{"queue.pause"}, storetest.ActionNames(log), "a call that changes nothing has no entry")
	require.JSONEq(t, `{"reason":"quota","paused_by":"wechat"}`, string(log[0].Before))
}

func TestClaimAboveMarksChecksThePause(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission())
	db.ClaimAs(t, "app", 1)
	db.Tasks.UseMarks(task.DefaultQueue)
	mustPause(t, db, task.DefaultQueue, time.Time{})
	require.Empty(t, db.ClaimAs(t, "app", 1))
	_, err := db.Tasks.ResumeQueue(t.Context(), task.DefaultQueue, storetest.Tester)
	require.NoError(t, err)
	require.Len(t, db.ClaimAs(t, "app", 1), 1)
}

// A claim that begins after the pause returns nothing, even while claims that began earlier are running.
func TestClaimAfterPauseReturnsNothing(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	instances := []*storetest.DB{storetest.OpenAt(t, url), storetest.OpenAt(t, url)}
	submitMany(t, instances[0], 400)
	claiming, stop := make(chan struct{}, 8), make(chan struct{})
	var claimers sync.WaitGroup
	for i := range cap(claiming) {
		claimers.Go(func() {
			for first := true; ; first = false {
				select {
				case <-stop:
					return
				default:
				}
				_, _, err := instances[i%2].Tasks.Claim(t.Context(), claimRequest("app", 0, 1))
				require.NoError(t, err)
				if first {
					claiming <- struct{}{}
				}
			}
		})
	}
	for range cap(claiming) {
		<-claiming
	}
	mustPause(t, instances[0], task.DefaultQueue, time.Time{})
	require.Empty(t, instances[1].ClaimAs(t, "after", 10))
	close(stop)
	claimers.Wait()
	pending := instances[0].Count(t, `select count(*) from task_live where state = 1`)
	require.Empty(t, instances[0].ClaimAs(t, "after", 10))
	_, err := instances[1].Tasks.ResumeQueue(t.Context(), task.DefaultQueue, storetest.Tester)
	require.NoError(t, err)
	require.Len(t, instances[0].ClaimAs(t, "after", 400), pending, "each remaining task once")
}

func TestQueuesHavePausesAndCounts(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	list := func(after string, limit int, queues ...string) (page []tasks.QueueState, more bool) {
		page, more, err := db.Tasks.Queues(t.Context(), queues, after, limit)
		require.NoError(t, err)
		return page, more
	}
	queues, more := list("", 1000)
	require.Empty(t, queues)
	require.False(t, more)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(func(s *tasks.Submission) { s.Queue, s.SendAt = "b", time.Now().Add(time.Hour) }))
	db.ClaimAs(t, "app", 1)
	mustPause(t, db, "b", time.Now().Add(time.Hour))
	mustPause(t, db, "a", time.Time{})
	mustPause(t, db, "ended", time.Now().Add(time.Hour))
	db.Exec(t, `update queue_pauses set until = now() where queue = 'ended'`)
	queues, more = list("", 3)
	require.Len(t, queues, 3)
	require.False(t, more)
	s := db.MustStatistics(t)
	require.Equal(t, "a", queues[0].Queue)
	require.Equal(t, tasks.LiveCounts{}, queues[0].LiveCounts)
	require.Equal(t, mustFindPause(t, db, "a"), *queues[0].Pause)
	require.Equal(t, s.SMS.Queues[0].LiveCounts, queues[1].LiveCounts)
	require.EqualValues(t, 1, queues[1].Scheduled)
	require.Equal(t, "default", queues[2].Queue)
	require.Nil(t, queues[2].Pause)
	require.EqualValues(t, 1, queues[2].Processing)
	require.NotNil(t, queues[2].OldestPending)

	after := ""
	for i := range queues {
		page, more := list(after, 1)
		require.Len(t, page, 1)
		require.Equal(t, queues[i].Queue, page[0].Queue)
		require.Equal(t, queues[i].Pause == nil, page[0].Pause == nil)
		require.Equal(t, i < 2, more)
		after = page[0].Queue
	}
	own, more := list("", 2, "a", "default")
	require.Equal(t, []string{"a", "default"}, []string{own[0].Queue, own[1].Queue})
	require.False(t, more)
	own, _ = list("a", 2, "a", "b")
	require.Len(t, own, 1)
	require.EqualValues(t, 1, own[0].Scheduled)
}

// Callers choose the names of queues, so there may be very many. Lists of queues have a limit, but the totals include all queues.
func TestListsOfQueuesAreBounded(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubscribe(t, storetest.Booking(1, `{}`))
	db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue)
		select gen_random_uuid(), 1, 5, 3, 0, 'q' || lpad(((i / 2) % 1500)::text, 6, '0') from generate_series(1, 3000) i`)
	db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue) select gen_random_uuid(), 1, 5, 3, 0, 'z' from generate_series(1, 3) i`)
	db.Exec(t, `insert into queue_pauses (queue, reason, paused_by, by_hand) select 'p' || i, repeat('x', 500), '', true from generate_series(1, 5000) i`)
	s := db.MustStatistics(t)
	require.Len(t, s.SMS.Queues, 999)
	require.Equal(t, "z", s.SMS.Queues[998].Queue, "the queue with most tasks is listed")
	require.True(t, s.SMS.HasMoreQueues)
	require.False(t, s.Subscribe.HasMoreQueues)
	require.EqualValues(t, 3003, s.SMS.Live.PendingNew, "the totals are of all queues")
	require.Len(t, s.Subscribe.Queues, 1)

	queues, _ := storetest.Pages(t, func(after string) (page []tasks.QueueState, more bool, err error) {
		page, more, err = db.Tasks.Queues(t.Context(), nil, after, 5000)
		bytes := 0
		for _, q := range page {
			if bytes += len(q.Queue); q.Pause != nil {
				bytes += len(q.Pause.Reason)
			}
		}
		require.Less(t, bytes, 1<<20)
		return page, more, err
	}, func(q tasks.QueueState) string { return q.Queue })
	require.Len(t, queues, 6502)
	require.IsIncreasing(t, store.Column(queues, func(q tasks.QueueState) string { return q.Queue }))
}

func TestEndedPauseIsReturnedDespiteMissingPartition(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission())
	db.Claim(t)
	db.ExpireLeases(t)
	db.MustSubmit(t, storetest.Submission(storetest.InQueue("paused")))
	mustPause(t, db, "paused", time.Now().Add(time.Hour))
	expirePauses(t, db)
	dropLogPartitions(t, db)
	swept, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, tasks.PendingByQueue{"paused": 1, task.DefaultQueue: 1}, swept.Pending)
}
