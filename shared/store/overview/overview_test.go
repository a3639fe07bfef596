package overview_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// countAndRead counts everything until now, and reads the overview.
func countAndRead(t *testing.T, db *storetest.DB) overview.Snapshot {
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
	s := countAndRead(t, storetest.Open(t))
	require.WithinDuration(t, time.Now(), s.At, time.Minute)
	require.WithinDuration(t, time.Now(), s.CountedTo, time.Minute)
	s.At, s.CountedTo = time.Time{}, time.Time{}
	require.Equal(t, overview.Snapshot{PausedStreams: []string{}}, s)
}

func TestReadCountsTasksByQueueAndState(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	later := func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) }
	hold := func(s *tasks.Submission) { s.OnUnknown = task.Hold }
	db.MustSubmit(t, storetest.Submission(hold), storetest.Submission(hold))
	claimed := db.ClaimAs(t, "phone", 2)
	db.MustReport(t, task.Report{TaskID: claimed[0].ID, AppID: "phone", Outcome: task.SentUnknown})
	db.MustSubmit(t, storetest.Submission(), storetest.Submission(), storetest.Submission(later), storetest.Submission(storetest.InQueue("bulk")))
	db.Exec(t, `update task_live set updated_at = now() - interval '5 minutes' where state = 1 and queue = 'default'`)
	db.Exec(t, `update task_live set updated_at = now() - interval '3 minutes' where state = 2`)

	s := countAndRead(t, db)
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
		for _, c := range db.ClaimAs(t, "phone", 1) {
			db.MustReport(t, task.Report{TaskID: c.ID, AppID: "phone", Outcome: outcome, ShouldRetry: retry})
		}
	}
	report(task.SentOK, false)
	report(task.SentFailed, false)
	failed := db.ClaimAs(t, "phone", 1)[0] // retried before its failure is counted
	db.MustReport(t, task.Report{TaskID: failed.ID, AppID: "phone", Outcome: task.SentFailed})
	_, err := db.Tasks.RetryFailed(t.Context(), failed.ID, store.Operator{Name: "tester"})
	require.NoError(t, err)
	report(task.SentFailed, true)
	report(task.SentOK, false)
	db.MustSubmit(t, storetest.Submission())
	db.ClaimAs(t, "phone", 1)
	db.ExpireLeases(t)
	_, err = db.Tasks.Sweep(t.Context(), 10)
	require.NoError(t, err)

	for range 3 { // counting again adds nothing
		s := countAndRead(t, db)
		q := queue(t, s, "default")
		totals := q.Totals
		totals.Wait, totals.Duration = overview.Histogram{}, overview.Histogram{}
		require.Equal(t, overview.Totals{Submitted: 4, Claims: 5, LeaseTimeouts: 1, Succeeded: 2, Failed: map[task.Reason]int64{task.Rejected: 1}}, totals)
		require.EqualValues(t, 3, sum(q.Totals.Wait))
		require.EqualValues(t, 3, sum(q.Totals.Duration))
		require.Positive(t, q.Totals.Duration.Seconds)
		require.Len(t, q.Throughput, overview.Intervals)
		last := q.Throughput[overview.Intervals-1]
		if time.Since(last.Since) > 10*time.Second { // otherwise, some of the tasks may belong to the interval before
			require.Equal(t, overview.Throughput{Since: last.Since, Submitted: 4, Succeeded: 2, Failed: 1}, last)
		}
		require.Len(t, s.Senders, 1)
		sender := s.Senders[0]
		require.WithinDuration(t, time.Now(), sender.LastReport, time.Minute)
		require.WithinDuration(t, time.Now(), sender.LastClaim, time.Minute)
		sender.LastClaim, sender.LastReport = time.Time{}, time.Time{}
		require.Equal(t, overview.Sender{App: "phone", Succeeded: 2, Failed: 3, Timeouts: 1}, sender)
	}
}

func sum(h overview.Histogram) (sum int64) {
	for _, n := range h.Counts {
		sum += n
	}
	return sum
}

func TestHistogramBoundsMatchSQL(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var bounds []float64
	require.NoError(t, db.Read.QueryRow(t.Context(), `select `+overview.BoundsSQL).Scan(&bounds))
	require.Equal(t, overview.Bounds[:], bounds)
}

func TestCountsStopAtLimit(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, claim_id, app_id)
		select gen_random_uuid(), n % 2 + 1, 5, 3, 0, 'full', now(), 1, 'phone' from generate_series(1, $1) n`, 2*overview.MaxRows+2)
	s := countAndRead(t, db)
	most := overview.Count{N: overview.MaxRows, More: true}
	require.Equal(t, most, queue(t, s, "full").Pending.Count)
	require.Equal(t, most, queue(t, s, "full").Processing.Count)
	require.Equal(t, most, s.Senders[0].Processing)
}

func TestManyQueuesDoNotHideQueueWithCounters(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission())
	countAndRead(t, db)
	db.Exec(t, `insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, claim_id, app_id)
		select gen_random_uuid(), 1, 5, 3, 0, to_char(n, '0000'), now(), 0, '' from generate_series(1, $1) n`, overview.MaxQueues)
	require.Equal(t, overview.Count{N: 1}, queue(t, countAndRead(t, db), "default").Pending.Count)
}

func TestOldestMessageIsFoundBeyondTheRowLimit(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for kind := range 2 {
		db.Exec(t, `delete from message_live`)
		db.Exec(t, `insert into message_live (id, caller_id, kind, destination_key, stream, status, remaining_sends, next_at)
			select gen_random_uuid(), 1, $2, 'd', '', 0, 1, now() + interval '1 hour' from generate_series(1, $1)`, overview.MaxRows+1, kind)
		db.Exec(t, `insert into message_live (id, caller_id, kind, destination_key, stream, status, remaining_sends, next_at)
			select gen_random_uuid(), n, $1, 'd', '', 0, 1, now() - n * interval '1 minute' from generate_series(2, 3) n`, kind)
		require.InDelta(t, 3*time.Minute, countAndRead(t, db).Messages.Due.Oldest, float64(30*time.Second))
	}
}

// Deliveries to a disabled endpoint wait until it is enabled. Deliveries of a revoked caller are never sent.
func TestDeliveriesThatMayNotBeSentAreNotDue(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into callers (id, name, token_hash, roles, queues, business_types, receives) overriding system value
		select n, 'c' || n, sha256(n::text::bytea), array['submitter'], '{}', '{}', '{}' from generate_series(1, 3) n`)
	db.Exec(t, `insert into webhook_endpoints (id, caller_id, url, secret) select gen_random_uuid(), id, 'https://b.example', 'enc2.' from callers`)
	db.Exec(t, `insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, next_at)
		select gen_random_uuid(), gen_random_uuid(), e.id, e.caller_id, 'x', gen_random_uuid(), '', now() - e.caller_id * interval '1 minute' from webhook_endpoints e`)
	for n, change := range []string{
		`select 1`,
		`update callers set revoked_at = now() where id = 3`,
		`update webhook_endpoints set enabled = false, disabled_reason = 'by_hand', disabled_at = now() where caller_id = 2`,
	} {
		db.Exec(t, change)
		due := countAndRead(t, db).Webhooks.Due
		require.Equal(t, overview.Count{N: 3 - n}, due.Count)
		require.InDelta(t, time.Duration(3-n)*time.Minute, due.Oldest, float64(30*time.Second))
	}
}

// Callers choose the names of queues, so only a limited number of names get counters of their own. A name with counters keeps them.
func TestNamesWithCountersAreLimited(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	submit := func(name string) {
		db.MustSubmit(t, storetest.Submission(storetest.InQueue(name)))
	}
	for n := range overview.MaxNames - 1 {
		submit(fmt.Sprintf("q%03d", n))
	}
	countAndRead(t, db)
	for _, late := range []string{"b", "a", "a", "c"} {
		submit(late)
	}
	submit("q000")
	for range 2 {
		s := countAndRead(t, db)
		require.Len(t, s.Queues, overview.MaxNames)
		require.EqualValues(t, 2, queue(t, s, "a").Totals.Submitted, "of the new names, the one with the most tasks gets counters")
		require.EqualValues(t, 2, queue(t, s, "q000").Totals.Submitted)
		require.Equal(t, overview.Count{N: 2}, s.OtherQueues.Pending.Count)
		require.EqualValues(t, 2, s.OtherQueues.Totals.Submitted)
		require.Len(t, s.OtherQueues.Throughput, overview.Intervals)
	}
	for _, name := range []string{"b", "c"} {
		_, err := db.Tasks.PauseQueue(t.Context(), tasks.Pause{Queue: name, Reason: "maintenance"}, storetest.Tester)
		require.NoError(t, err)
	}
	require.Equal(t, overview.Backlog{Count: overview.Count{N: 2}}, countAndRead(t, db).OtherQueues.Pending, "tasks of paused queues are counted, but their age is left out")
}

func TestCountersOfUnusedNamesAreRemoved(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(storetest.InQueue("old")), storetest.Submission(storetest.InQueue("new")))
	countAndRead(t, db)
	db.Exec(t, `update overview_totals set counted_at = now() - interval '31 days' where name = 'old'`)
	db.Exec(t, `update overview_throughput set since = now() - interval '2 days' where queue = 'old'`)
	s := countAndRead(t, db)
	require.Zero(t, queue(t, s, "old").Totals)
	require.EqualValues(t, 1, queue(t, s, "new").Totals.Submitted)
	require.Zero(t, db.Count(t, `select count(*) from overview_totals where name = 'old'`))
	require.Zero(t, db.Count(t, `select count(*) from overview_throughput where queue = 'old'`))
}

func TestCountIgnoresRowsYoungerThanLag(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission())
	require.NoError(t, db.Overview.Count(t.Context(), overview.Lag))
	s, err := db.Overview.Read(t.Context())
	require.NoError(t, err)
	require.Zero(t, s.Queues[0].Totals.Submitted)
	require.InDelta(t, overview.Lag, s.At.Sub(s.CountedTo), float64(10*time.Second))
	require.EqualValues(t, 1, countAndRead(t, db).Queues[0].Totals.Submitted)
}

// After a long time without a count, one statement cannot count all of that time.
func TestCountProgressesHoweverLongNothingWasCounted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `create function be_slow() returns trigger language plpgsql as $$
begin if new.counted_to - old.counted_to > interval '5 minutes' then perform pg_sleep(60); end if; return new; end $$`)
	db.Exec(t, `create trigger be_slow before update on overview_counted for each row execute function be_slow()`)
	before := db.Count(t, `select extract(epoch from counted_to)::bigint from overview_counted`)
	counted := 0
	for range 10 { // on a slow machine, one call may count only 5 s of the 6 hours
		ctx, cancel := context.WithTimeout(t.Context(), 3900*time.Millisecond) // time for one statement timeout, not for two
		_ = db.Overview.Count(ctx, 0)                                          // a call that counts nothing returns an error
		cancel()
		if counted = db.Count(t, `select extract(epoch from counted_to)::bigint from overview_counted`) - before; counted >= 100 {
			return
		}
	}
	require.Fail(t, "counting stands still", "%d seconds were counted", counted)
}

// A sender may claim and release a task any number of times.
func TestOnlyFirstClaimsOfTaskAreCounted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at)
		select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x', now() - interval '1 minute' from generate_series(1, 2)`)
	db.Exec(t, `insert into send_logs (task_id, claim_id, app_id, phone_number, content, created_at)
		select id, n, 'phone', '', '', created_at + n * interval '1 millisecond' from tasks cross join generate_series(1, $1) n order by n`, 3*overview.MaxClaims)
	db.Exec(t, `insert into task_done (id, status, reason, retry_count, ended, app_id) select id, 2, 0, 0, 0, 'phone' from tasks`)
	q := queue(t, countAndRead(t, db), "default")
	require.EqualValues(t, 2, q.Totals.Succeeded)
	require.EqualValues(t, 2*overview.MaxClaims, q.Totals.Claims)
	require.EqualValues(t, 2, sum(q.Totals.Wait))
	require.InDelta(t, 0.002, q.Totals.Wait.Seconds, 0.0001, "the wait ends with the first claim")
}

func TestCountTriesShorterPartInNextCall(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Overview.SetCountTime(500 * time.Millisecond)
	db.Exec(t, `create function be_slow() returns trigger language plpgsql as $$
begin if new.counted_to - old.counted_to > interval '50 milliseconds' then perform pg_sleep(60); end if; return new; end $$`)
	db.Exec(t, `create trigger be_slow before update on overview_counted for each row execute function be_slow()`)
	countedTo := func() time.Time { return storetest.Value[time.Time](t, db, `select counted_to from overview_counted`) }
	before := countedTo()
	for began := time.Now(); time.Since(began) < time.Minute; {
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond) // time for one statement timeout, not for two
		_ = db.Overview.Count(ctx, 0)                                         // a call that counts nothing returns an error
		cancel()
		if countedTo().After(before) {
			return
		}
	}
	require.Fail(t, "counting stands still")
}

func TestConcurrentCountsAddOnce(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for range 20 {
		db.MustSubmit(t, storetest.Submission())
	}
	var counts sync.WaitGroup
	for range 5 {
		counts.Go(func() {
			if err := db.Overview.Count(t.Context(), 0); err != nil {
				t.Error(err)
			}
		})
	}
	counts.Wait()
	require.EqualValues(t, 20, countAndRead(t, db).Queues[0].Totals.Submitted)
}

// A process whose clock was ahead, or an attacker who controls a function, can write such a time.
func TestCountingContinuesAfterTimeInFuture(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `update overview_counted set counted_to = '9999-01-01'`)
	countAndRead(t, db)
	require.Equal(t, 1, db.Count(t, `select count(*) from overview_counted where counted_to < now()`))
	db.MustSubmit(t, storetest.Submission())
	require.EqualValues(t, 1, queue(t, countAndRead(t, db), "default").Totals.Submitted)
}

// An attacker who controls a function can write these rows.
func TestForgedRowsDoNotStopCounting(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission())
	db.Exec(t, `insert into task_done (id, status, reason, retry_count, ended, app_id) select gen_random_uuid(), 2, 0, -5, 0, repeat('x', 50) from generate_series(1, 3)`)
	db.Exec(t, `insert into report_logs (task_id, verdict, status, app_id) values (gen_random_uuid(), 'timeout_retry', 2147483647, '')`)
	db.Exec(t, `insert into send_logs (task_id, claim_id, app_id, phone_number, content) select id, 1, 'a', '', '' from task_done`)
	db.Exec(t, `insert into overview_totals (kind, key, name, n, seconds) values (1, 0, 'default', 9223372036854775807, 1e15), (0, 0, 'default', 0, 0), (3, 77, 'x', 5, 0), (4, 99, 'x', 5, 0),
		(1, 0, 'y', 9223372036854775807, 1e15), (1, 0, 'z', 9223372036854775807, 1e15)`)
	db.Exec(t, `insert into overview_throughput (since, queue, submitted, succeeded, failed)
		select now(), q, 9223372036854775807, 9223372036854775807, 9223372036854775807 from unnest(array['y', 'z']) q`)
	s := countAndRead(t, db)
	require.Positive(t, queue(t, s, "default").Totals.Submitted)
}
