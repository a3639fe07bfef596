package tasks

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Claim claims up to req.Limit tasks. If there are fewer, Claim processes due tasks: those of req.Queue, and
// some of each other queue. So due tasks are processed even if only claims run. If tasks of req.Queue became
// pending, Claim claims again. pending has, for each queue, the number of tasks that Claim made pending and
// did not claim. The caller can wake other pollers for them. Claim returns pending even with an error. If any
// task was claimed, there is no error.
//
// Most polls find nothing. If a claim is not likely to succeed, Claim calls hasWork first, which costs a
// quarter of a claim.
//
// While low-water marks are in use, a scan in the background processes due tasks and finds the tasks below
// the marks.
func (st *Store) Claim(ctx context.Context, req ClaimRequest) (claimed []Claimed, pending PendingByQueue, err error) {
	if len(st.marks.of(req.Queue)) > 0 {
		claimed, err = st.claimOnce(ctx, req, req.Limit)
		return claimed, nil, store.Wrap("claim", err)
	}
	hasPending, hasDue := true, true
	if !req.WokenUp && !st.nonEmpty.has(req.Queue) {
		hasPending, hasDue = st.hasWork(ctx, req.Queue)
	}
	if hasPending {
		claimed, err = st.claimOnce(ctx, req, req.Limit)
		st.nonEmpty.set(req.Queue, len(claimed) > 0)
	}
	if err != nil || len(claimed) == req.Limit || !hasPending && !hasDue {
		return claimed, nil, store.Wrap("claim", err)
	}
	swept, err := st.sweep(ctx, sweepRows, req.Queue)
	if err == nil && swept.Pending[req.Queue] > 0 {
		var more []Claimed
		more, err = st.claimOnce(ctx, req, req.Limit-len(claimed))
		claimed = append(claimed, more...)
		swept.Pending[req.Queue] -= len(more)
	}
	if len(claimed) > 0 {
		err = nil
	}
	return claimed, swept.Pending, store.Wrap("claim", err)
}

const hasWorkSQL = `select exists (select from task_live where state = 1 and queue = $1), ` + dueColumns

// hasWork reports whether a queue has pending tasks, even if the queue is paused. due is true if any task is due or
// any pause has ended. If the query fails, pending is true: the claim will return the error.
func (st *Store) hasWork(ctx context.Context, queue string) (pending, due bool) {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return true, true
	}
	defer conn.Release()
	start := time.Now()
	var next nextDue
	err = conn.QueryRow(ctx, hasWorkSQL, queue).Scan(&pending, &next.pause, &next.task, &next.now)
	if err == nil && st.marks.observe(queue, time.Since(start), pending) {
		st.scanLater(queue)
	}
	return pending || err != nil, next.isPast(next.pause) || next.isPast(next.task)
}

const (
	removeRounds = 10     // how often one claim removes rows without a body, at most
	removeRows   = "1000" // how many rows at the head of the queue each removal examines
)

// removeBodilessSQL examines the rows $1 and the rows at the head of queue $2, and removes those that have no body.
const removeBodilessSQL = `
with head as materialized (
    select unnest($1::uuid[]) as id
    union all
    (select id from task_live where state = 1 and queue = $2 order by priority, retry_count, id limit ` + removeRows + `)
)
delete from task_live where id = any (array(
    select l.id from head cross join lateral (select id from task_live where task_live.id = head.id for update skip locked) l
    where not exists (select from tasks where tasks.id = l.id offset 0)
))`

// claimOnce claims up to limit tasks. If it claimed rows without a body, it removes such rows and claims again, so that
// these rows do not delay other tasks. If any task was claimed, there is no error.
func (st *Store) claimOnce(ctx context.Context, req ClaimRequest, limit int) (claimed []Claimed, err error) {
	for range removeRounds {
		var round []Claimed
		req.Limit = limit - len(claimed)
		if round, err = st.claimRound(ctx, req); err != nil {
			break
		}
		var bodiless []task.ID
		claimed = slices.Grow(claimed, len(round))
		for _, c := range round {
			if c.bodiless {
				bodiless = append(bodiless, c.ID)
			} else {
				claimed = append(claimed, c)
			}
		}
		if len(bodiless) == 0 {
			break
		}
		if _, err = st.db.Hot.Exec(ctx, removeBodilessSQL, bodiless, req.Queue); err != nil {
			break
		}
	}
	if len(claimed) > 0 {
		err = nil
	}
	return claimed, err
}

// Extension extends the lease of one claim.
type Extension struct {
	TaskID   task.ID
	AppID    string
	CallerID int64 // of the claim
	ClaimID  int64 // 0 = not given; then AppID and CallerID identify the claim
	Lease    time.Duration
	Sending  bool // the message is about to be sent
}

// extendSQL never shortens a lease. It keeps the time when the task was first marked as sending, does not mark an expired task,
// and logs the new end of the lease.
const extendSQL = `
with extended as (
    update task_live set due_at = greatest(due_at, now() + make_interval(secs => $4)), updated_at = now(),
        sending_at = case when $5 then coalesce(sending_at, now()) else sending_at end
    where id = $1 and state = 2 and app_id = $2 and ($3::bigint = 0 or claim_id = $3)
        and claimed_by = $6 and (not $5 or sending_at is not null or expires_at is null or expires_at > now())
    returning id, app_id, claim_id, due_at, sending_at
), logged as (
    insert into report_logs (task_id, claim_id, app_id, verdict, error_message)
    select id, claim_id, app_id, case when sending_at = now() then 'sending' else 'extended' end, to_char(due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
    from extended
)
select claim_id, due_at, sending_at is not null from extended`

// Extended is a lease after its extension.
type Extended struct {
	ClaimID    int64
	LeaseUntil time.Time
	Sending    bool
}

// Extend extends a lease, so that it lasts at least e.Lease from now. If e.Sending is set, Extend marks the task as
// sending. If the claim is not the live claim of the task, or is another caller's, or an expired task is to be marked, the error
// is task.CodeStaleClaim. queues are the queues that the caller may use; empty = all. If the task is in none of them, and the
// caller has not claimed it, the error is task.CodeNotFound.
func (st *Store) Extend(ctx context.Context, e Extension, queues []string) (Extended, error) {
	var out Extended
	err := st.db.Durably(ctx, func() error { // the caller sends the message because of the mark
		return st.db.WithPartitions(ctx, func() error {
			return st.db.Hot.QueryRow(ctx, extendSQL, e.TaskID, e.AppID, e.ClaimID, e.Lease.Seconds(), e.Sending, e.CallerID).
				Scan(&out.ClaimID, &out.LeaseUntil, &out.Sending)
		})
	})
	if !errors.Is(err, pgx.ErrNoRows) {
		return out, store.Wrap("extend", err)
	}
	t, err := st.ByID(ctx, e.TaskID)
	if err != nil {
		return out, err
	}
	if !showsTask(t.Task, e.CallerID, queues) {
		return out, store.NotFound("task")
	}
	return out, task.Refuse(task.CodeStaleClaim, "this claim is not the task's live one, or not this caller's, or the task expired; stop working on the task")
}
