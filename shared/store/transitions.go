package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// liveColumns are the columns of task_live l that make up a task.Task.
const liveColumns = `l.id, l.queue, l.priority, l.max_retries, l.on_unknown, l.expires_at, l.state, 0, l.retry_count, l.due_at,
    coalesce(l.result, ''), coalesce(l.error_code, ''), null::timestamptz, null::timestamptz,
    coalesce(l.claim_id, 0), coalesce(l.app_id, ''), l.ended, l.marks_sending, l.sending_at, l.caller_id, l.callback,
    case when l.owned_claim = l.claim_id then l.claimed_by end`

// doneColumns are the same of task_done d and its body t.
const doneColumns = `d.id, t.queue, t.priority, t.max_retries, t.on_unknown, t.expires_at, d.status + 2, d.reason, d.retry_count, null::timestamptz,
    coalesce(d.result, ''), coalesce(d.error_code, ''), d.sent_at, d.reported_at,
    coalesce(d.claim_id, 0), coalesce(d.app_id, ''), d.ended, false, null::timestamptz, t.caller_id, t.callback_url is not null,
    d.claimed_by`

// lockLiveSQL locks in id order, so that two transactions never deadlock.
const lockLiveSQL = `select ` + liveColumns + `, now() from task_live l where l.id = any($1::uuid[]) order by l.id for update`

// lockDoneSQL runs after lockLiveSQL, and finds tasks that were finished while that waited.
const lockDoneSQL = `
select ` + doneColumns + `, now()
from task_done d cross join lateral (select * from tasks where tasks.id = d.id offset 0) t
where d.id = any($1::uuid[])
order by d.id
for update of d`

// tasksExistSQL finds the tasks that are live or done.
const tasksExistSQL = `select id from tasks where id = any($1::uuid[])`

// taskScan reads liveColumns or doneColumns followed by now() into a task.
type taskScan struct {
	t                                     *task.Task
	expires, due, sent, finished, sending *time.Time
	now                                   time.Time
}

func newTaskScan(t *task.Task) *taskScan { return &taskScan{t: t} }

func (s *taskScan) targets() []any {
	t := s.t
	return []any{&t.ID, &t.Queue, &t.Priority, &t.MaxRetries, &t.OnUnknown, &s.expires, &t.State, &t.Reason, &t.RetryCount, &s.due,
		&t.Result, &t.ErrorCode, &s.sent, &s.finished, &t.ClaimID, &t.AppID, &t.Ended, &t.MarksSending, &s.sending,
		&t.CallerID, &t.Callback, &t.ClaimedBy, &s.now}
}

// settle fills the task's times after a row was scanned.
func (s *taskScan) settle() {
	t := s.t
	t.ExpiresAt, t.DueAt, t.SentAt = orZero(s.expires), orZero(s.due), orZero(s.sent)
	t.FinishedAt, t.SendingAt = orZero(s.finished), orZero(s.sending)
}

func scanTasks(rows pgx.Rows, each func(t task.Task, now time.Time)) error {
	var t task.Task
	scan := newTaskScan(&t)
	_, err := pgx.ForEachRow(rows, scan.targets(), func() error {
		scan.settle()
		each(t, scan.now)
		return nil
	})
	return err
}

// locked is the set of tasks that a transaction has locked, and its now.
type locked struct {
	tasks map[task.ID]task.Task
	exist map[task.ID]bool // the other tasks that are live or done
	now   time.Time
}

// of returns one task. found is false when it is archived or does not exist. The error is
// errBusy when the task changed tables each time before it could be locked.
func (l locked) of(id task.ID) (t task.Task, found bool, err error) {
	t, found = l.tasks[id]
	if !found && l.exist[id] {
		err = errBusy()
	}
	return t, found, err
}

// missing returns the tasks that are not locked.
func (l locked) missing(ids []task.ID) []task.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { _, held := l.tasks[id]; return held })
}

// How long a flush waits for locked rows. A row that is run alone has waited before.
const (
	lockTimeout      = "250ms"
	lockTimeoutAlone = "20ms"
)

// lockRounds limits how often lockTasks searches both tables. It misses a task that moves
// twice in each round.
const lockRounds = 5

// lockTasks begins a transaction and locks the tasks, in one round trip when all are live. It
// searches both tables for the others, again for those that moved between the tables while it
// waited for their locks.
func lockTasks(ctx context.Context, conn *pgx.Conn, ids []task.ID, timeout string) (locked, error) {
	held := locked{tasks: make(map[task.ID]task.Task, len(ids))}
	keep := func(rows pgx.Rows) error {
		return scanTasks(rows, func(t task.Task, _ time.Time) { held.tasks[t.ID] = t })
	}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(setLockTimeoutSQL, timeout)
	batch.Queue(lockLiveSQL, ids).Query(keep)
	batch.Queue("select now()").QueryRow(func(row pgx.Row) error { return row.Scan(&held.now) })
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return held, err
	}
	missing := held.missing(ids)
	for round := 0; round < lockRounds && len(missing) > 0; round++ {
		held.exist = map[task.ID]bool{}
		var batch pgx.Batch
		batch.Queue(lockDoneSQL, missing).Query(keep)
		batch.Queue(lockLiveSQL, missing).Query(keep)
		batch.Queue(tasksExistSQL, missing).Query(collectSet(held.exist))
		if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
			return held, err
		}
		missing = held.missing(slices.Collect(maps.Keys(held.exist)))
	}
	return held, nil
}

// change is one task before and after a decision.
type change struct {
	before, after task.Task
}

// Hooks are what another subject does in the transaction that changes tasks. Package subscribe
// keeps the rows of its messages equal to their tasks with them.
type Hooks struct {
	// Changed adds statements to the batch that applies the changes.
	Changed func(batch *pgx.Batch, changes []change)
	// MayRevive returns an error if the finished task, which is locked, must not be sent again.
	MayRevive func(ctx context.Context, conn *pgx.Conn, t task.Task) error
}

// verdictLog is one row of report_logs.
type verdictLog struct {
	id        task.ID
	claimID   int64
	appID     string
	status    int // the status number that the sender reported; 0 = none
	verdict   task.Verdict
	errorCode string
	message   string
	request   string // JSON
	foreign   *int64 // caller of a stale report that is not known to have made a claim; else nil
}

const insertDoneSQL = `
insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, sent_at, result, error_code, subscribe, claimed_by)
select * from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::smallint[], $6::bigint[], $7::text[],
    $8::timestamptz[], $9::text[], $10::text[], $11::boolean[], $12::bigint[])`

const deleteLiveSQL = `delete from task_live where id = any($1::uuid[])`

const updateLiveSQL = `
update task_live l set state = t.state, retry_count = t.retry_count, due_at = t.due_at, ended = t.ended,
    result = t.result, error_code = t.error_code, updated_at = now()
from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::timestamptz[], $5::smallint[], $6::text[], $7::text[])
    as t (id, state, retry_count, due_at, ended, result, error_code)
where l.id = t.id`

const updateDoneSQL = `
update task_done d set status = t.status, reason = t.reason, ended = t.ended, sent_at = t.sent_at, reported_at = now(),
    result = t.result, error_code = t.error_code
from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::timestamptz[], $6::text[], $7::text[])
    as t (id, status, reason, ended, sent_at, result, error_code)
where d.id = t.id`

const deleteDoneSQL = `delete from task_done where id = any($1::uuid[])`

const insertLiveSQL = `
insert into task_live (id, state, priority, retry_count, max_retries, on_unknown, queue, due_at, expires_at, claim_id, app_id, ended, result,
    error_code, caller_id, callback, claimed_by, owned_claim)
select t.*, t.claim_id from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::smallint[], $6::smallint[], $7::text[],
    $8::timestamptz[], $9::timestamptz[], $10::bigint[], $11::text[], $12::smallint[], $13::text[], $14::text[], $15::bigint[], $16::boolean[],
    $17::bigint[])
    as t (id, state, priority, retry_count, max_retries, on_unknown, queue, due_at, expires_at, claim_id, app_id, ended, result, error_code,
    caller_id, callback, claimed_by)`

const logVerdictsSQL = `
insert into report_logs (task_id, claim_id, app_id, status, verdict, error_code, error_message, request_data)
select * from unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::jsonb[])`

// adjustTotalsSQL corrects the stored totals of a day when a counted result of it is
// withdrawn. The shared lock waits for a count under way.
const (
	totalsLock      = "7310001" // any number that nothing else locks
	lockTotalsSQL   = `select pg_advisory_xact_lock_shared(` + totalsLock + `)`
	adjustTotalsSQL = `
update task_totals set
    succeeded = succeeded - case when $2 = 2 and not $3 then 1 else 0 end, failed = failed - case when $2 = 3 and not $3 then 1 else 0 end,
    subscribe_succeeded = subscribe_succeeded - case when $2 = 2 and $3 then 1 else 0 end,
    subscribe_failed = subscribe_failed - case when $2 = 3 and $3 then 1 else 0 end
where day = ($1::timestamptz at time zone 'UTC')::date and (counted_to is null or $1::timestamptz < counted_to)`
)

// queueChanges adds the statements that apply the changes and publish their events. It is the
// second round trip of every transition.
func (db *DB) queueChanges(batch *pgx.Batch, changes []change) *commitNotifier {
	// Totals are locked by day, oldest first, so that two transactions never deadlock.
	slices.SortStableFunc(changes, func(a, b change) int { return a.before.FinishedAt.Compare(b.before.FinishedAt) })
	var finish, update, amend, revive []task.Task
	for _, c := range changes {
		switch {
		case c.before.State.Final():
			if len(amend)+len(revive) == 0 {
				batch.Queue(lockTotalsSQL)
			}
			batch.Queue(adjustTotalsSQL, c.before.FinishedAt, c.before.State.Status(), subscription(c.before))
			if c.after.State.Final() {
				amend = append(amend, c.after)
			} else {
				revive = append(revive, c.after)
			}
		case c.after.State.Final():
			finish = append(finish, c.after)
		default:
			update = append(update, c.after)
		}
	}
	if len(finish) > 0 {
		batch.Queue(deleteLiveSQL, column(finish, taskID))
		batch.Queue(insertDoneSQL, column(finish, taskID), column(finish, doneStatus), column(finish, reason), column(finish, retryCount),
			column(finish, ended), column(finish, claimID), column(finish, appID), column(finish, sentAt), column(finish, result), column(finish, errorCode),
			column(finish, subscription), column(finish, claimedBy))
	}
	if len(update) > 0 {
		batch.Queue(updateLiveSQL, column(update, taskID), column(update, state), column(update, retryCount), column(update, dueAt),
			column(update, ended), column(update, result), column(update, errorCode))
	}
	if len(amend) > 0 {
		batch.Queue(updateDoneSQL, column(amend, taskID), column(amend, doneStatus), column(amend, reason), column(amend, ended),
			column(amend, sentAt), column(amend, result), column(amend, errorCode))
	}
	if len(revive) > 0 {
		batch.Queue(deleteDoneSQL, column(revive, taskID))
		batch.Queue(insertLiveSQL, column(revive, taskID), column(revive, state), column(revive, priority), column(revive, retryCount),
			column(revive, maxRetries), column(revive, onUnknown), column(revive, queueName), column(revive, dueAt), column(revive, expiresAt),
			column(revive, claimID), column(revive, appID), column(revive, ended), column(revive, result), column(revive, errorCode),
			column(revive, callerID), column(revive, callback), column(revive, claimedBy))
	}
	db.hooks.Changed(batch, changes)
	return db.queueEvents(batch, changes)
}

// logForeignSQL logs only the first stale report of a caller on a task that it is not known to
// have claimed. Otherwise anybody who has a task's id could fill the log.
const logForeignSQL = `
insert into report_logs (task_id, claim_id, app_id, status, verdict, error_code, error_message, request_data, caller_id)
select t.* from unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::bigint[])
    as t (task_id, claim_id, app_id, status, verdict, error_code, error_message, request_data, caller_id)
where not exists (select from report_logs l where l.task_id = t.task_id and l.caller_id = t.caller_id)`

func queueVerdicts(batch *pgx.Batch, logs []verdictLog) {
	type stranger struct {
		task   task.ID
		caller int64
	}
	var own, foreign []verdictLog
	seen := map[stranger]bool{}
	for _, l := range logs {
		if l.foreign == nil {
			own = append(own, l)
		} else if by := (stranger{l.id, *l.foreign}); !seen[by] {
			seen[by] = true
			foreign = append(foreign, l)
		}
	}
	if len(own) > 0 {
		batch.Queue(logVerdictsSQL, verdictColumns(own)...)
	}
	if len(foreign) > 0 {
		batch.Queue(logForeignSQL, append(verdictColumns(foreign), column(foreign, func(l verdictLog) *int64 { return l.foreign }))...)
	}
}

// verdictColumns returns the parameters of logVerdictsSQL.
func verdictColumns(logs []verdictLog) []any {
	return []any{
		column(logs, func(l verdictLog) task.ID { return l.id }),
		column(logs, func(l verdictLog) *int64 { return orNull(l.claimID) }),
		column(logs, func(l verdictLog) *string { return orNull(l.appID) }),
		column(logs, func(l verdictLog) *int32 { return orNull(int32(l.status)) }),
		column(logs, func(l verdictLog) string { return string(l.verdict) }),
		column(logs, func(l verdictLog) *string { return orNull(l.errorCode) }),
		column(logs, func(l verdictLog) *string { return orNull(task.Cut(l.message, task.MaxResult)) }),
		column(logs, func(l verdictLog) *string { return orNull(l.request) }),
	}
}

func taskID(t task.Task) task.ID       { return t.ID }
func state(t task.Task) int16          { return int16(t.State) }
func doneStatus(t task.Task) int16     { return int16(t.State.Status()) }
func reason(t task.Task) int16         { return int16(t.Reason) }
func priority(t task.Task) int16       { return t.Priority }
func retryCount(t task.Task) int16     { return t.RetryCount }
func maxRetries(t task.Task) int16     { return t.MaxRetries }
func onUnknown(t task.Task) int16      { return int16(t.OnUnknown) }
func ended(t task.Task) int16          { return int16(t.Ended) }
func subscription(t task.Task) bool    { return task.IsSubscription(t.Queue) }
func queueName(t task.Task) string     { return t.Queue }
func callerID(t task.Task) int64       { return t.CallerID }
func callback(t task.Task) bool        { return t.Callback }
func claimID(t task.Task) *int64       { return orNull(t.ClaimID) }
func claimedBy(t task.Task) *int64     { return t.ClaimedBy }
func appID(t task.Task) *string        { return orNull(t.AppID) }
func result(t task.Task) *string       { return orNull(t.Result) }
func errorCode(t task.Task) *string    { return orNull(t.ErrorCode) }
func dueAt(t task.Task) *time.Time     { return timeOrNull(t.DueAt) }
func sentAt(t task.Task) *time.Time    { return timeOrNull(t.SentAt) }
func expiresAt(t task.Task) *time.Time { return timeOrNull(t.ExpiresAt) }

// decide changes one task for an operator or a submitter: it locks the task, lets the domain
// decide, and commits the change together with extra.
func (db *DB) decide(ctx context.Context, id task.ID, how func(t task.Task, now time.Time) (task.Task, error),
	extra func(batch *pgx.Batch, before, after task.Task)) (task.Task, error) {
	var after task.Task
	err := db.withPartitions(ctx, func() error {
		conn, err := db.hot.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		held, err := lockTasks(ctx, conn.Conn(), []task.ID{id}, lockTimeout)
		if err == nil {
			after, err = db.decideOne(ctx, conn.Conn(), held, id, how, extra)
		}
		return rollbackOn(conn.Conn(), err)
	})
	return after, err
}

func (db *DB) decideOne(ctx context.Context, conn *pgx.Conn, held locked, id task.ID, how func(task.Task, time.Time) (task.Task, error),
	extra func(*pgx.Batch, task.Task, task.Task)) (task.Task, error) {
	before, found, err := held.of(id)
	if err == nil && !found {
		err = errNotFound("task")
	}
	if err != nil {
		return before, err
	}
	after, err := how(before, held.now)
	if err == nil && before.State.Final() && !after.State.Final() {
		err = db.hooks.MayRevive(ctx, conn, before)
	}
	if err != nil {
		return before, err
	}
	var batch pgx.Batch
	var notifier *commitNotifier
	if after != before {
		notifier = db.queueChanges(&batch, []change{{before, after}})
		extra(&batch, before, after)
	}
	batch.Queue("commit")
	return after, notifier.notify(conn.SendBatch(ctx, &batch).Close())
}
