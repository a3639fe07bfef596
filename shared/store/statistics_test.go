package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) mustCount(t *testing.T) Statistics {
	t.Helper()
	s, err := db.Statistics(t.Context())
	require.NoError(t, err)
	return s
}

// insertClosedDay closes a day ($1) that had so many SMS succeed ($2) and fail ($3).
const insertClosedDay = `insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed) values ($1, $2, $3, 0, 0)`

func TestStatisticsOfNothingAreZero(t *testing.T) {
	t.Parallel()
	db := open(t)
	require.NoError(t, db.CloseDays(t.Context()))
	require.Zero(t, db.count(t, `select count(*) from task_totals`))
	require.Equal(t, Statistics{}, db.mustCount(t))
}

func TestStatisticsCountEachStateByQueue(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	inQueue := func(queue string) func(*Submission) { return func(s *Submission) { s.Queue = queue } }
	later := func(s *Submission) { s.SendAt = time.Now().Add(time.Hour) }
	db.mustSubmit(t, message(), message(), message(), message(), message(), message(later), message(inQueue("bulk")))
	claimed := db.mustClaim(t, "app", 4)
	for i, report := range []task.Report{
		{Outcome: task.SentOK},
		{Outcome: task.SentFailed},
		{Outcome: task.SentFailed, ShouldRetry: true},
	} {
		report.TaskID, report.AppID = claimed[i].ID, "app"
		require.Equal(t, task.Applied, db.mustReport(t, report).Verdict)
	}
	_, err := owner(t, url).Exec(t.Context(), `update task_live set updated_at = now() - interval '90 seconds' where queue = 'bulk'`)
	require.NoError(t, err)

	s := db.mustCount(t)
	require.Equal(t, int64(1), s.Succeeded)
	require.Equal(t, int64(1), s.Failed)
	require.Len(t, s.Queues, 2)
	require.Equal(t, "bulk", s.Queues[0].Queue)
	require.InDelta(t, 90, s.Live.OldestPending.Seconds(), 30, "the queue that waits longest decides")
	require.Less(t, s.Queues[1].OldestPending.Seconds(), 30.0)
	s.Live.OldestPending = nil
	require.Equal(t, LiveCounts{Scheduled: 1, PendingNew: 3, PendingRetry: 1, Processing: 1}, s.Live)

	var fresh, retry, processing, failed int64 // the query of the original SMS API
	require.NoError(t, db.read.QueryRow(t.Context(), `select
		count(case when status = 0 and retry_count = 0 then 1 end), count(case when status = 0 and retry_count > 0 then 1 end),
		count(case when status = 1 then 1 end), count(case when status = 3 then 1 end) from sms_tasks`).Scan(&fresh, &retry, &processing, &failed))
	require.Equal(t, []int64{fresh, retry, processing, failed}, []int64{s.Live.PendingNew, s.Live.PendingRetry, s.Live.Processing, s.Failed})
}

func TestStatisticsCountSubscribeMessagesApart(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	db.mustSubmit(t, message(), message())
	require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: db.mustClaim(t, "app", 1)[0].ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	out := db.subscribe(t, booking(1, `{}`))
	db.try(t, task.Report{Outcome: task.SentFailed})
	db.subscribe(t, booking(2, `{}`))
	db.try(t, task.Report{Outcome: task.SentOK})
	db.subscribe(t, booking(3, `{}`))
	recorded := booking(4, `{}`)
	recorded.Queue, recorded.AppID, recorded.Lease = task.RecordedQueue, "shop", time.Minute
	db.subscribe(t, recorded)

	counted := func(when string, late int64) {
		s := db.mustCount(t)
		require.Equal(t, []int64{1, 0}, []int64{s.Succeeded, s.Failed}, when)
		require.Equal(t, []int64{1 + late, 1 - late}, []int64{s.Subscribe.Succeeded, s.Subscribe.Failed}, when)
		require.Len(t, s.Queues, 1, when)
		require.Equal(t, []int64{1, 0}, []int64{s.Live.PendingNew, s.Live.Processing}, when)
		require.Len(t, s.Subscribe.Queues, 2, when)
		require.Equal(t, []int64{1, 1}, []int64{s.Subscribe.Live.PendingNew, s.Subscribe.Live.Processing}, when)
	}
	counted("while the day is open", 0)
	require.Equal(t, 2, db.count(t, `select count(*) from sms_tasks`))
	require.Zero(t, db.count(t, `select count(*) from sms_tasks where status = 3`))

	_, err := conn.Exec(t.Context(), `update task_done set reported_at = reported_at - interval '3 days'`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), insertClosedDay, time.Now().AddDate(0, 0, -10), 0, 0)
	require.NoError(t, err)
	require.NoError(t, db.CloseDays(t.Context()))
	require.Equal(t, 1, db.count(t, `select count(*) from task_totals where succeeded = 1 and failed = 0 and subscribe_succeeded = 1 and subscribe_failed = 1`))
	counted("once the day is closed", 0)

	_, err = conn.Exec(t.Context(), `update task_done set reason = 3, ended = 4 where status = 3`)
	require.NoError(t, err)
	failed := db.mustTask(t, out.TaskID)
	require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: out.TaskID, AppID: "wechat", ClaimID: failed.ClaimID, Outcome: task.SentOK}).Verdict)
	counted("after a late success of a closed day", 1)
}

func TestSMSTasksShowQueueAndReason(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message(func(s *Submission) { s.Queue = "bulk" })
	db.mustSubmit(t, s)
	require.Equal(t, 1, db.count(t, `select count(*) from sms_tasks where queue = 'bulk' and reason is null`))
	_, err := db.Cancel(t.Context(), s.ID, nil)
	require.NoError(t, err)
	for r := task.NoReason; r <= task.Cancelled; r++ {
		if r != task.NoReason {
			db.exec(t, `update task_done set reason = $1`, int16(r))
		} else {
			db.exec(t, `update task_done set reason = 0, status = 2`)
		}
		require.Equal(t, 1, db.count(t, `select count(*) from sms_tasks where coalesce(reason, '') = $1`, r.String()), "the word of reason %d", r)
		db.exec(t, `update task_done set reason = 6, status = 3`)
	}
}

// finishOn puts n results on a day, as if they had been reported at its noon.
func finishOn(t *testing.T, conn *pgx.Conn, day time.Time, status, n int) {
	t.Helper()
	reason := map[int]int{2: 0, 3: 3}[status]
	for range n {
		_, err := conn.Exec(t.Context(), `
			with b as (
				insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
				values ($1, 0, 'default', 5, 3, 0, '13800138000', 'x') returning id)
			insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, reported_at)
			select id, $2, $3, 3, 4, 1, 'app', $4 from b`,
			task.NewID(), status, reason, day.Add(12*time.Hour))
		require.NoError(t, err)
	}
}

func TestClosedDaysAreCountedOnceAndFollowWithdrawnResults(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	old := today.AddDate(0, 0, -3)
	finishOn(t, conn, old, 2, 3)
	finishOn(t, conn, old, 3, 1)
	finishOn(t, conn, today.AddDate(0, 0, -2), 2, 1)
	_, err := conn.Exec(t.Context(), insertClosedDay, today.AddDate(0, 0, -4), 100, 10)
	require.NoError(t, err)
	before := db.mustCount(t)
	require.Equal(t, []int64{104, 11}, []int64{before.Succeeded, before.Failed})

	done := make(chan error)
	for range 2 {
		go func() { done <- db.CloseDays(t.Context()) }()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, 1, db.count(t, `select count(*) from task_totals where day = $1 and succeeded = 3 and failed = 1`, old))
	require.GreaterOrEqual(t, db.count(t, `select count(*) from task_totals`), 3, "days without a result are closed too")
	require.Zero(t, db.count(t, `select count(*) from task_totals where day >= $1`, today), "today is open")
	require.Equal(t, before, db.mustCount(t), "closing days changes no figure")

	var late task.ID
	require.NoError(t, conn.QueryRow(t.Context(), `select id from task_done where status = 3`).Scan(&late))
	require.Equal(t, task.Applied, db.mustReport(t, task.Report{TaskID: late, AppID: "app", ClaimID: 1, Outcome: task.SentOK}).Verdict)
	after := db.mustCount(t)
	require.Equal(t, []int64{105, 10}, []int64{after.Succeeded, after.Failed})
	require.Equal(t, 1, db.count(t, `select count(*) from task_totals where day = $1 and succeeded = 3 and failed = 0`, old))
}

// A day that takes longer to count than one event may last is counted in parts,
// over as many events as that takes.
func TestALongDayIsCountedInPartsThatAreKept(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	conn := owner(t, url)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	day := today.AddDate(0, 0, -2)
	_, err := conn.Exec(t.Context(), `
with b as (
	insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 20000)
	returning id, seq
)
insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, reported_at)
select id, 2 + seq % 2, 3 * (seq % 2), 3, 4, 1, 'app', $1::timestamptz + seq * interval '4 seconds' from b`, day)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), insertClosedDay, day.AddDate(0, 0, -1), 100, 10)
	require.NoError(t, err)
	impatient := openAt(t, url)
	impatient.countTime = time.Millisecond
	before := impatient.mustCount(t)
	require.Equal(t, []int64{10100, 10010}, []int64{before.Succeeded, before.Failed})

	const begun = `select count(*) from task_totals where counted_to is not null`
	for more := true; impatient.count(t, begun) == 0; {
		require.True(t, more, "the day is too long for one part")
		more, err = impatient.closeDays(t.Context(), time.Now().Add(time.Millisecond))
		require.NoError(t, err)
	}
	require.Equal(t, before, impatient.mustCount(t), "a day that is counted in part is counted once")
	var counted time.Time
	require.NoError(t, conn.QueryRow(t.Context(), `select counted_to from task_totals where day = $1`, day).Scan(&counted))
	require.True(t, counted.After(day) && counted.Before(day.AddDate(0, 0, 1)), "%v", counted)

	var early, late task.ID // of failures on both sides of what is counted
	require.NoError(t, conn.QueryRow(t.Context(), `select id from task_done where status = 3 and reported_at < $1 limit 1`, counted).Scan(&early))
	require.NoError(t, conn.QueryRow(t.Context(), `select id from task_done where status = 3 and reported_at >= $1 order by reported_at desc limit 1`, counted).Scan(&late))
	for _, id := range []task.ID{early, late} {
		require.Equal(t, task.Applied, impatient.mustReport(t, task.Report{TaskID: id, AppID: "app", ClaimID: 1, Outcome: task.SentOK}).Verdict)
	}
	_, err = conn.Exec(t.Context(), `delete from task_done where reported_at < $1`, counted)
	require.NoError(t, err)
	done := make(chan error)
	for range 2 { // whoever goes on, and however many
		go func() { done <- openAt(t, url).CloseDays(t.Context()) }()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Zero(t, impatient.count(t, begun))
	after := impatient.mustCount(t)
	require.Equal(t, []int64{10102, 10008}, []int64{after.Succeeded, after.Failed}, "what was counted was not counted anew")
}

func TestADayIsClosedFromTheOldestResultOn(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	made := time.Now().UTC().AddDate(0, 0, -5)
	_, err := conn.Exec(t.Context(), `insert into task_done (id, status, reason, retry_count, ended, reported_at) values ($1, 2, 0, 0, 5, $2)`, task.IDFloor(made), made)
	require.NoError(t, err)
	require.NoError(t, db.CloseDays(t.Context()))
	require.Equal(t, 1, db.count(t, `select sum(succeeded)::int from task_totals`))
	require.Equal(t, int64(1), db.mustCount(t).Succeeded)
}

func TestCountingResultsTakesTheIndexOnTheirTime(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, conn := openAt(t, url), owner(t, url)
	_, err := conn.Exec(t.Context(), `
		insert into task_done (id, status, reason, retry_count, ended, reported_at)
		select gen_random_uuid(), 2, 0, 0, 5, now() - interval '20 days' + i * interval '20 days' / 50000 from generate_series(1, 50000) i`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `vacuum analyze task_done`)
	require.NoError(t, err)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	plan := explain(t, db.read, "select", statisticsSQL, today)
	require.Contains(t, plan, "task_done_reported")
	require.NotContains(t, plan, "Seq Scan on task_done")
	plan = explain(t, db.retention, "set local enable_bitmapscan = on", countSQL, today, today, today.AddDate(0, 0, 1))
	require.Contains(t, plan, "task_done_reported")
}

// explain gives the plan of a query for these very parameters, made after the
// statement setup in one transaction.
func explain(t *testing.T, pool *pgxpool.Pool, setup, sql string, args ...any) (plan string) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), setup); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), "explain "+sql, append([]any{unprepared}, args...)...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	}))
	return plan
}

// The role's own transactions are read-only, so that it finds no server that
// takes writes, and must not look for one.
func TestWhereAPrimaryIsAskedForTheReadRoleFindsItToo(t *testing.T) {
	t.Parallel()
	for _, wanted := range []string{"read-write", "primary", "any"} {
		t.Run(wanted, func(t *testing.T) {
			t.Parallel()
			config, err := pgx.ParseConfig(sandbox.NewDatabase(t))
			require.NoError(t, err)
			url := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s target_session_attrs=%s",
				config.Host, config.Port, config.User, config.Password, config.Database, wanted)
			_, err = openAt(t, url).Statistics(t.Context())
			require.NoError(t, err)
		})
	}
}
