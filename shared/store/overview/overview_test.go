package overview_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// read counts everything until now, and reads it.
func read(t *testing.T, db *storetest.DB) overview.Snapshot {
	t.Helper()
	require.NoError(t, db.Overview.Count(t.Context(), 0))
	s, err := db.Overview.Read(t.Context())
	require.NoError(t, err)
	return s
}

func queue(t *testing.T, s overview.Snapshot, name string) overview.Queue {
	t.Helper()
	for _, q := range s.Queues {
		if q.Name == name {
			return q
		}
	}
	require.Fail(t, "no queue "+name)
	return overview.Queue{}
}

func TestReadEmptyDatabase(t *testing.T) {
	t.Parallel()
	s := read(t, storetest.Open(t))
	require.WithinDuration(t, time.Now(), s.At, time.Minute)
	require.WithinDuration(t, time.Now(), s.CountedTo, time.Minute)
	s.At, s.CountedTo = time.Time{}, time.Time{}
	require.Equal(t, overview.Snapshot{PausedStreams: []string{}}, s)
}

func TestReadCountsTasksByQueueAndState(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	bulk := func(s *tasks.Submission) { s.Queue = "bulk" }
	later := func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) }
	hold := func(s *tasks.Submission) { s.OnUnknown = task.Hold }
	db.MustSubmit(t, storetest.Submission(hold), storetest.Submission(hold))
	claimed := db.MustClaim(t, "phone", 2)
	db.MustReport(t, task.Report{TaskID: claimed[0].ID, AppID: "phone", Outcome: task.SentUnknown})
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(later), storetest.Submission(bulk))
	db.Exec(t, `update task_live set updated_at = now() - interval '5 minutes' where state = 1 and queue = 'default'`)
	db.Exec(t, `update task_live set updated_at = now() - interval '3 minutes' where state = 2`)

	s := read(t, db)
	require.Len(t, s.Queues, 2)
	q := queue(t, s, "default")
	require.Equal(t, []overview.Count{{N: 1}, {N: 2}, {N: 0}, {N: 1}, {N: 1}, {N: 5}},
		[]overview.Count{q.Scheduled, q.Pending.Count, q.Retries, q.Processing.Count, q.Held.Count, q.Live()})
	require.InDelta(t, 5*time.Minute, q.Pending.Oldest, float64(10*time.Second))
	require.InDelta(t, 3*time.Minute, q.Processing.Oldest, float64(10*time.Second))
	require.EqualValues(t, 5, q.Totals.Submitted)
	require.Equal(t, overview.Count{N: 1}, queue(t, s, "bulk").Pending.Count)
	require.Len(t, s.Senders, 1)
	require.Equal(t, "phone", s.Senders[0].App)
	require.Equal(t, overview.Count{N: 1}, s.Senders[0].Processing)
}

func TestCountAddsResultsOnce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission())
	report := func(outcome task.Outcome, retry bool) {
		for _, c := range db.MustClaim(t, "phone", 1) {
			db.MustReport(t, task.Report{TaskID: c.ID, AppID: "phone", Outcome: outcome, ShouldRetry: retry})
		}
	}
	report(task.SentOK, false)
	report(task.SentFailed, false)
	report(task.SentFailed, true)
	report(task.SentOK, false)
	db.MustSubmit(t, storetest.Submission())
	db.MustClaim(t, "phone", 1)
	db.ExpireLeases(t)
	_, err := db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)

	for range 3 { // counting again adds nothing
		s := read(t, db)
		q := queue(t, s, "default")
		totals := q.Totals
		totals.Wait, totals.Duration = overview.Histogram{}, overview.Histogram{}
		require.Equal(t, overview.Totals{Submitted: 4, Claims: 4, LeaseTimeouts: 1, Succeeded: 2, Failed: map[task.Reason]int64{task.Rejected: 1}}, totals)
		require.EqualValues(t, 3, sum(q.Totals.Wait))
		require.EqualValues(t, 3, sum(q.Totals.Duration))
		require.Positive(t, q.Totals.Duration.Seconds)
		require.Len(t, q.Throughput, overview.Intervals)
		last := q.Throughput[overview.Intervals-1]
		if time.Since(last.Since) > 10*time.Second {
			require.Equal(t, overview.Throughput{Since: last.Since, Submitted: 4, Succeeded: 2, Failed: 1}, last)
		}
		require.Len(t, s.Senders, 1)
		sender := s.Senders[0]
		require.WithinDuration(t, time.Now(), sender.LastReport, time.Minute)
		require.WithinDuration(t, time.Now(), sender.LastClaim, time.Minute)
		sender.LastClaim, sender.LastReport = time.Time{}, time.Time{}
		require.Equal(t, overview.Sender{App: "phone", Succeeded: 2, Failed: 1, Timeouts: 1}, sender)
	}
}

func sum(h overview.Histogram) (n int64) {
	for _, one := range h.Counts {
		n += one
	}
	return n
}
