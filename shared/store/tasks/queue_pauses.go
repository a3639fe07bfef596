package tasks

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Pause is a pause of a queue: tasks of the queue are not claimed. Tasks that are already claimed stay with
// their sender. New tasks are still accepted, scheduled tasks still become pending, and tasks still expire.
type Pause struct {
	Queue     string
	Until     time.Time // the end; zero = none: an operator must resume the queue
	Reason    string    // for operators
	PausedBy  string    // name of the operator or function
	Manual    bool      // an operator paused the queue; false = a function
	CreatedAt time.Time

	Left         time.Duration // time left until Until, by the database's clock; 0 or less = ended. Queries set it if Until is set
	PendingTasks int           // pending tasks of the queue, counted up to 1000. Only ResumeQueue sets it
}

// json returns the pause for an audit entry; "" if there is no pause.
func (p Pause) json() string {
	if p.Queue == "" {
		return ""
	}
	row := map[string]any{"reason": p.Reason, "paused_by": p.PausedBy}
	if !p.Until.IsZero() {
		row["until"] = p.Until.UTC()
	}
	return store.MustJSON(row)
}

// notPaused is the condition that queue $1 is not paused. The condition does not depend on the rows of a
// claim, so Postgres evaluates it once for each claim.
const notPaused = `not exists (select from queue_pauses where queue = $1 and (until is null or until > now()))`

const pauseColumns = `queue, until, reason, paused_by, by_hand, created_at, now()`

// pauseSQL creates or replaces a pause, and returns its row. It does nothing and returns no row if the end is in the
// past. For a function ($5 is false), it replaces a pause that is in force only if that pause is of a function and ends
// earlier.
const pauseSQL = `
insert into queue_pauses as p (queue, until, reason, paused_by, by_hand)
select $1, $2, $3, $4, $5 where $2::timestamptz is null or $2 > now()
on conflict (queue) do update set until = excluded.until, reason = excluded.reason, paused_by = excluded.paused_by,
    by_hand = excluded.by_hand, created_at = now()
where excluded.by_hand or p.until <= now() or not p.by_hand and p.until < coalesce(excluded.until, 'infinity')
returning ` + pauseColumns

// PauseQueue pauses p.Queue until p.Until with the reason p.Reason; other fields of p are ignored. It replaces any
// other pause of the queue. If p.Until is in the past, the error is task.CodeInvalid.
func (st *Store) PauseQueue(ctx context.Context, p Pause, by store.Operator) (after Pause, err error) {
	by.Reason = p.Reason
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		before, _, err := queryPause(ctx, tx, lockPauseSQL, p.Queue)
		if err != nil {
			return store.AuditEntry{}, err
		}
		var paused bool
		after, paused, err = queryPause(ctx, tx, pauseSQL, p.Queue, store.TimeOrNull(p.Until), store.Storable(p.Reason), store.Storable(by.Name), true)
		if err == nil && !paused {
			err = task.Invalid([]task.Field{{Name: "until", Message: "must be in the future"}})
		}
		return store.AuditEntry{Action: "queue.pause", Subject: pauseSubject(p.Queue), Before: before.json(), After: after.json()}, err
	})
	return after, store.Wrap("pause queue", err)
}

// PauseQueueAs pauses a queue for a function that cannot send anything now. It does nothing if p.Until is in the past.
// It replaces a pause that is in force only if that pause is of a function and ends earlier. The caller must make sure
// that Sweep runs at the end of the pause.
func (st *Store) PauseQueueAs(ctx context.Context, p Pause, function string) error {
	_, _, err := queryPause(ctx, st.db.Hot, pauseSQL, p.Queue, store.TimeOrNull(p.Until), store.Storable(p.Reason), function, false)
	return store.Wrap("pause queue", err)
}

func pauseSubject(queue string) string { return "queue/" + queue }

// lockPauseSQL finds and locks the pause of a queue, if it is in force.
const lockPauseSQL = `select ` + pauseColumns + ` from queue_pauses where queue = $1 and (until is null or until > now()) for update`

// endPauseSQL sets the end of a pause to now. It does not delete the row: Sweep does, and returns the pending tasks of
// the queue, so pollers are woken even if the process that resumed the queue has died.
const endPauseSQL = `update queue_pauses set until = now() where queue = $1 returning ` + pendingOf + `$1` + pendingLimit

// pendingOf, a queue and pendingLimit form a subquery that counts the queue's pending tasks up to 1000.
const (
	pendingOf    = `(select count(*) from (select from task_live l where l.state = 1 and l.queue = `
	pendingLimit = ` limit 1000) waiting)`
)

// ResumeQueue ends the pause of a queue and returns this pause. If the queue is not paused, the error is
// task.CodeNotFound. The caller must wake pollers for p.PendingTasks tasks.
func (st *Store) ResumeQueue(ctx context.Context, queue string, by store.Operator) (p Pause, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		var paused bool
		p, paused, err = queryPause(ctx, tx, lockPauseSQL, queue)
		if err == nil && !paused {
			err = task.Refuse(task.CodeNotFound, "queue "+queue+" is not paused")
		}
		if err != nil {
			return store.AuditEntry{}, err
		}
		err = tx.QueryRow(ctx, endPauseSQL, queue).Scan(&p.PendingTasks)
		return store.AuditEntry{Action: "queue.resume", Subject: pauseSubject(queue), Before: p.json()}, err
	})
	return p, store.Wrap("resume queue", err)
}

const queuePauseSQL = `select ` + pauseColumns + ` from queue_pauses where queue = $1`

// QueuePause returns the pause of a queue and whether the pause is in force. It also returns an ended pause, until a
// sweep removes its row.
func (st *Store) QueuePause(ctx context.Context, queue string) (p Pause, paused bool, err error) {
	p, found, err := queryPause(ctx, st.db.Hot, queuePauseSQL, queue)
	return p, found && (p.Until.IsZero() || p.Left > 0), store.Wrap("queue pause", err)
}

// PendingByQueue has, for each queue, the number of tasks that became pending. If a pause of the queue has ended, all its
// pending tasks, counted up to 1000, are added.
type PendingByQueue map[string]int

// removeEndedPausesSQL removes ended pauses and returns how many tasks of each of their queues are pending.
// Locked rows are skipped.
const removeEndedPausesSQL = `
delete from queue_pauses p where queue = any(array(select queue from queue_pauses where until <= now() for update skip locked))
returning queue, ` + pendingOf + `p.queue` + pendingLimit

// endPauses removes the ended pauses and adds the pending tasks of their queues to pending.
func endPauses(ctx context.Context, conn *pgx.Conn, pending PendingByQueue) error {
	var queue string
	var n int
	return store.QueryEach(ctx, conn, removeEndedPausesSQL, nil, []any{&queue, &n}, func() {
		pending[queue] += n
	})
}

// queryPause reads the pause that sql returns. found is false if sql returns no row.
func queryPause(ctx context.Context, q store.Querier, sql string, args ...any) (p Pause, found bool, err error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return p, false, err
	}
	p, err = pgx.CollectExactlyOneRow(rows, scanPause)
	if errors.Is(err, pgx.ErrNoRows) {
		return Pause{}, false, nil
	}
	return p, err == nil, err
}

func scanPause(row pgx.CollectableRow) (p Pause, err error) {
	var until *time.Time
	var now time.Time
	err = row.Scan(&p.Queue, &until, &p.Reason, &p.PausedBy, &p.Manual, &p.CreatedAt, &now)
	p.setEnd(until, now)
	return p, err
}

// setEnd sets Until and Left. If until is nil, the pause has no end.
func (p *Pause) setEnd(until *time.Time, now time.Time) {
	if until != nil {
		p.Until, p.Left = *until, until.Sub(now)
	}
}

// QueueState has the counts of a queue's live tasks, and its pause that is in force.
type QueueState struct {
	QueueCounts
	Pause *Pause // nil = not paused
}

// ofPage is the condition that a queue can be on a page: its name is after $1, and $2 is empty or contains the name.
const ofPage = `queue > $1 and (cardinality($2::text[]) = 0 or queue = any($2))`

// queuesSQL limits both sides of the join to the size of a page: rows beyond it cannot be on the page.
const queuesSQL = `
select coalesce(live.queue, paused.queue), coalesce(scheduled, 0), coalesce(pending_new, 0), coalesce(pending_retry, 0),
    coalesce(processing, 0), coalesce(held, 0), oldest_pending,
    paused.queue, until, coalesce(reason, ''), coalesce(paused_by, ''), coalesce(by_hand, false), coalesce(created_at, now()), now()
from (
    select queue, ` + countLive + ` where ` + ofPage + ` group by queue order by queue limit $3
) live
full join (
    select * from queue_pauses where (until is null or until > now()) and ` + ofPage + ` order by queue limit $3
) paused on paused.queue = live.queue
order by 1
limit $3`

// Queues returns a page of the queues that have live tasks or are paused, sorted by name. Only the given queues
// may be listed; empty = all queues. after is the last name of the previous page; "" = the first page.
func (st *Store) Queues(ctx context.Context, queues []string, after string, limit int) (page []QueueState, more bool, err error) {
	page, more, err = store.QueryPageBy(ctx, st.db.Read, limit, scanQueue, queuesSQL, store.Unprepared, after, store.NotNull(queues), limit+1)
	return page, more, store.Wrap("queues", err)
}

func scanQueue(row pgx.CollectableRow) (q QueueState, err error) {
	var oldest *float64
	var paused *string
	var until *time.Time
	var p Pause
	var now time.Time
	err = row.Scan(&q.Queue, &q.Scheduled, &q.PendingNew, &q.PendingRetry, &q.Processing, &q.Held, &oldest,
		&paused, &until, &p.Reason, &p.PausedBy, &p.Manual, &p.CreatedAt, &now)
	q.OldestPending = age(oldest)
	if paused != nil {
		p.Queue = *paused
		p.setEnd(until, now)
		q.Pause = &p
	}
	return q, err
}
