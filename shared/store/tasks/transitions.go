package tasks

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
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

// tasksExistSQL finds the tasks that are live or done. One statement sees one state of both
// tables, so it finds a task that another transaction moves, too.
const tasksExistSQL = `
select id from task_live where id = any($1::uuid[])
union all
select id from task_done where id = any($1::uuid[])`

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
	t.ExpiresAt, t.DueAt, t.SentAt = store.OrZero(s.expires), store.OrZero(s.due), store.OrZero(s.sent)
	t.FinishedAt, t.SendingAt = store.OrZero(s.finished), store.OrZero(s.sending)
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

// Locked is the set of tasks that a transaction has locked, and its now.
type Locked struct {
	tasks map[task.ID]task.Task
	exist map[task.ID]bool // the other tasks that are live or done
	Now   time.Time
}

// Of returns one task. found is false when it is archived, does not exist, or
// has lost its state. The error is
// errBusy when the task changed tables each time before it could be locked.
func (l Locked) Of(id task.ID) (t task.Task, found bool, err error) {
	t, found = l.tasks[id]
	if !found && l.exist[id] {
		err = store.Busy()
	}
	return t, found, err
}

// missing returns the tasks that are not locked.
func (l Locked) missing(ids []task.ID) []task.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { _, held := l.tasks[id]; return held })
}

// How long a flush waits for locked rows. A row that is run alone has waited before.
const (
	LockTimeout      = "250ms"
	lockTimeoutAlone = "20ms"
)

// lockRounds limits how often lockTasks searches both tables. It misses a task that moves
// twice in each round.
const lockRounds = 5

// Lock begins a transaction and locks the tasks, in one round trip when all are live. It
// searches both tables for the others, again for those that moved between the tables while it
// waited for their locks.
func Lock(ctx context.Context, conn *pgx.Conn, ids []task.ID, timeout string) (Locked, error) {
	held := Locked{tasks: make(map[task.ID]task.Task, len(ids))}
	keep := func(rows pgx.Rows) error {
		return scanTasks(rows, func(t task.Task, _ time.Time) { held.tasks[t.ID] = t })
	}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(store.SetLockTimeoutSQL, timeout)
	batch.Queue(lockLiveSQL, ids).Query(keep)
	batch.Queue("select now()").QueryRow(func(row pgx.Row) error { return row.Scan(&held.Now) })
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return held, err
	}
	missing := held.missing(ids)
	for round := 0; round < lockRounds && len(missing) > 0; round++ {
		held.exist = map[task.ID]bool{}
		var batch pgx.Batch
		batch.Queue(lockDoneSQL, missing).Query(keep)
		batch.Queue(lockLiveSQL, missing).Query(keep)
		batch.Queue(tasksExistSQL, missing).Query(store.CollectSet(held.exist))
		if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
			return held, err
		}
		missing = held.missing(slices.Collect(maps.Keys(held.exist)))
	}
	return held, nil
}

// Change is one task before and after a decision.
type Change struct {
	Before, After task.Task
}

// Hooks are what another subject does in the transaction that changes tasks. Package subscribe
// keeps the rows of its messages equal to their tasks with them.
type Hooks struct {
	// Changed adds statements to the batch that applies the changes.
	Changed func(batch *pgx.Batch, changes []Change)
	// MayRevive returns an error if the finished task, which is locked, must not be sent again.
	MayRevive func(ctx context.Context, conn *pgx.Conn, t task.Task) error
}

// VerdictLog is one row of report_logs.
type VerdictLog struct {
	ID        task.ID
	claimID   int64
	appID     string
	status    int // the status number that the sender reported; 0 = none
	Verdict   task.Verdict
	errorCode string
	Message   string
	request   string // JSON
	foreign   *int64 // caller of a stale report that is not known to have made a claim; else nil
}

// insertDoneSQL leaves out tasks that have a final row already, which only a function that was taken over can have
// written: it must not make the changes of others fail.
const insertDoneSQL = `
insert into task_done (id, status, reason, retry_count, ended, claim_id, app_id, sent_at, result, error_code, subscribe, claimed_by)
select * from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::smallint[], $6::bigint[], $7::text[],
    $8::timestamptz[], $9::text[], $10::text[], $11::boolean[], $12::bigint[])
    as t (id, status, reason, retry_count, ended, claim_id, app_id, sent_at, result, error_code, subscribe, claimed_by)
where not exists (select from task_done d where d.id = t.id offset 0)`

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
	TotalsLock      = "7310001" // any number that nothing else locks
	lockTotalsSQL   = `select pg_advisory_xact_lock_shared(` + TotalsLock + `)`
	adjustTotalsSQL = `
update task_totals set
    succeeded = greatest(succeeded, -1000000000000000000) - case when $2 = 2 and not $3 then 1 else 0 end, failed = greatest(failed, -1000000000000000000) - case when $2 = 3 and not $3 then 1 else 0 end,
    subscribe_succeeded = greatest(subscribe_succeeded, -1000000000000000000) - case when $2 = 2 and $3 then 1 else 0 end,
    subscribe_failed = greatest(subscribe_failed, -1000000000000000000) - case when $2 = 3 and $3 then 1 else 0 end
where day = ($1::timestamptz at time zone 'UTC')::date and (counted_to is null or $1::timestamptz < counted_to)`
)

// QueueChanges adds the statements that apply the changes and publish their events. It is the
// second round trip of every transition.
func (st *Store) QueueChanges(batch *pgx.Batch, changes []Change) *store.Notifier {
	// Totals are locked by day, oldest first, so that two transactions never deadlock.
	slices.SortStableFunc(changes, func(a, b Change) int { return a.Before.FinishedAt.Compare(b.Before.FinishedAt) })
	var finish, update, amend, revive []task.Task
	for _, c := range changes {
		switch {
		case c.Before.State.Final():
			if len(amend)+len(revive) == 0 {
				batch.Queue(lockTotalsSQL)
			}
			batch.Queue(adjustTotalsSQL, c.Before.FinishedAt, c.Before.State.Status(), subscription(c.Before))
			if c.After.State.Final() {
				amend = append(amend, c.After)
			} else {
				revive = append(revive, c.After)
			}
		case c.After.State.Final():
			finish = append(finish, c.After)
		default:
			update = append(update, c.After)
		}
	}
	if len(finish) > 0 {
		batch.Queue(deleteLiveSQL, store.Column(finish, taskID))
		batch.Queue(insertDoneSQL, store.Column(finish, taskID), store.Column(finish, doneStatus), store.Column(finish, reason), store.Column(finish, retryCount),
			store.Column(finish, ended), store.Column(finish, claimID), store.Column(finish, appID), store.Column(finish, sentAt), store.Column(finish, result), store.Column(finish, errorCode),
			store.Column(finish, subscription), store.Column(finish, claimedBy))
	}
	if len(update) > 0 {
		batch.Queue(updateLiveSQL, store.Column(update, taskID), store.Column(update, state), store.Column(update, retryCount), store.Column(update, dueAt),
			store.Column(update, ended), store.Column(update, result), store.Column(update, errorCode))
	}
	if len(amend) > 0 {
		batch.Queue(updateDoneSQL, store.Column(amend, taskID), store.Column(amend, doneStatus), store.Column(amend, reason), store.Column(amend, ended),
			store.Column(amend, sentAt), store.Column(amend, result), store.Column(amend, errorCode))
	}
	if len(revive) > 0 {
		batch.Queue(deleteDoneSQL, store.Column(revive, taskID))
		batch.Queue(insertLiveSQL, store.Column(revive, taskID), store.Column(revive, state), store.Column(revive, priority), store.Column(revive, retryCount),
			store.Column(revive, maxRetries), store.Column(revive, onUnknown), store.Column(revive, queueName), store.Column(revive, dueAt), store.Column(revive, expiresAt),
			store.Column(revive, claimID), store.Column(revive, appID), store.Column(revive, ended), store.Column(revive, result), store.Column(revive, errorCode),
			store.Column(revive, callerID), store.Column(revive, callback), store.Column(revive, claimedBy))
	}
	st.hooks.Changed(batch, changes)
	return st.queueEvents(batch, changes)
}

// logForeignSQL logs only the first stale report of a caller on a task that it is not known to
// have claimed. Otherwise any caller with a task's id could fill the log.
const logForeignSQL = `
insert into report_logs (task_id, claim_id, app_id, status, verdict, error_code, error_message, request_data, caller_id)
select t.* from unnest($1::uuid[], $2::bigint[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::bigint[])
    as t (task_id, claim_id, app_id, status, verdict, error_code, error_message, request_data, caller_id)
where not exists (select from report_logs l where l.task_id = t.task_id and l.caller_id = t.caller_id)`

func QueueVerdicts(batch *pgx.Batch, logs []VerdictLog) {
	type stranger struct {
		task   task.ID
		caller int64
	}
	var own, foreign []VerdictLog
	seen := map[stranger]bool{}
	for _, l := range logs {
		if l.foreign == nil {
			own = append(own, l)
		} else if by := (stranger{l.ID, *l.foreign}); !seen[by] {
			seen[by] = true
			foreign = append(foreign, l)
		}
	}
	if len(own) > 0 {
		batch.Queue(logVerdictsSQL, verdictColumns(own)...)
	}
	if len(foreign) > 0 {
		batch.Queue(logForeignSQL, append(verdictColumns(foreign), store.Column(foreign, func(l VerdictLog) *int64 { return l.foreign }))...)
	}
}

// verdictColumns returns the parameters of logVerdictsSQL.
func verdictColumns(logs []VerdictLog) []any {
	return []any{
		store.Column(logs, func(l VerdictLog) task.ID { return l.ID }),
		store.Column(logs, func(l VerdictLog) *int64 { return store.OrNull(l.claimID) }),
		store.Column(logs, func(l VerdictLog) *string { return store.OrNull(l.appID) }),
		store.Column(logs, func(l VerdictLog) *int32 { return store.OrNull(int32(l.status)) }),
		store.Column(logs, func(l VerdictLog) string { return string(l.Verdict) }),
		store.Column(logs, func(l VerdictLog) *string { return store.OrNull(l.errorCode) }),
		store.Column(logs, func(l VerdictLog) *string { return store.OrNull(task.Cut(l.Message, task.MaxResult)) }),
		store.Column(logs, func(l VerdictLog) *string { return store.OrNull(l.request) }),
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
func claimID(t task.Task) *int64       { return store.OrNull(t.ClaimID) }
func claimedBy(t task.Task) *int64     { return t.ClaimedBy }
func appID(t task.Task) *string        { return store.OrNull(t.AppID) }
func result(t task.Task) *string       { return store.OrNull(t.Result) }
func errorCode(t task.Task) *string    { return store.OrNull(t.ErrorCode) }
func dueAt(t task.Task) *time.Time     { return store.TimeOrNull(t.DueAt) }
func sentAt(t task.Task) *time.Time    { return store.TimeOrNull(t.SentAt) }
func expiresAt(t task.Task) *time.Time { return store.TimeOrNull(t.ExpiresAt) }

// decide changes one task for an operator or a submitter: it locks the task, lets the domain
// decide, and commits the change together with extra.
func (st *Store) decide(ctx context.Context, id task.ID, how func(t task.Task, now time.Time) (task.Task, error),
	extra func(batch *pgx.Batch, before, after task.Task)) (task.Task, error) {
	var after task.Task
	err := st.db.WithPartitions(ctx, func() error {
		conn, err := st.db.Hot.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		held, err := Lock(ctx, conn.Conn(), []task.ID{id}, LockTimeout)
		if err == nil {
			after, err = st.decideOne(ctx, conn.Conn(), held, id, how, extra)
		}
		return store.RollbackOn(conn.Conn(), err)
	})
	return after, err
}

func (st *Store) decideOne(ctx context.Context, conn *pgx.Conn, held Locked, id task.ID, how func(task.Task, time.Time) (task.Task, error),
	extra func(*pgx.Batch, task.Task, task.Task)) (task.Task, error) {
	before, found, err := held.Of(id)
	if err == nil && !found {
		err = store.NotFound("task")
	}
	if err != nil {
		return before, err
	}
	after, err := how(before, held.Now)
	if err == nil && before.State.Final() && !after.State.Final() {
		err = st.hooks.MayRevive(ctx, conn, before)
	}
	if err != nil {
		return before, err
	}
	var batch pgx.Batch
	var notifier *store.Notifier
	if after != before {
		notifier = st.QueueChanges(&batch, []Change{{before, after}})
		extra(&batch, before, after)
	}
	batch.Queue("commit")
	return after, notifier.Notify(conn.SendBatch(ctx, &batch).Close())
}
