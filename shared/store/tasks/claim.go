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

// Claim claims up to req.Limit pending tasks. If it finds fewer, it processes due tasks: up to sweepRows of req.Queue,
// and some of other queues. So due tasks are processed even if only claims run. If tasks of req.Queue became pending,
// Claim claims again. pending has, for each queue, the number of tasks that Claim made pending and did not claim, plus
// the pending tasks of each queue whose ended pause Claim removed. The caller can wake other pollers for them. Claim
// returns pending even with an error. If any task was claimed, there is no error.
//
// Most polls find nothing. So Claim calls hasWork first, which costs a quarter of a claim, unless the poller was woken
// or the last claim of the queue in this process returned a task.
//
// While the low-water marks of the queue are in use, Claim does not process due tasks: a scan in the background does,
// and finds the tasks below the marks.
func (st *Store) Claim(ctx context.Context, req ClaimRequest) (claimed []Claimed, pending PendingByQueue, err error) {
	if len(st.marks.of(req.Queue)) > 0 {
		claimed, err = st.claimPending(ctx, req, req.Limit)
		return claimed, nil, store.Wrap("claim", err)
	}
	hasPending, hasDue := true, true
	if !req.WokenUp && !st.nonEmpty.has(req.Queue) {
		hasPending, hasDue = st.hasWork(ctx, req.Queue)
	}
	if hasPending {
		claimed, err = st.claimPending(ctx, req, req.Limit)
		st.nonEmpty.set(req.Queue, len(claimed) > 0)
	}
	if err != nil || len(claimed) == req.Limit || !hasPending && !hasDue {
		return claimed, nil, store.Wrap("claim", err)
	}
	swept, err := st.sweep(ctx, sweepRows, req.Queue)
	if err == nil && swept.Pending[req.Queue] > 0 {
		var more []Claimed
		more, err = st.claimPending(ctx, req, req.Limit-len(claimed))
		claimed = append(claimed, more...)
		swept.Pending[req.Queue] -= len(more)
	}
	if len(claimed) > 0 {
		err = nil
	}
	return claimed, swept.Pending, store.Wrap("claim", err)
}

const hasWorkSQL = `select exists (select from task_live where state = 1 and queue = $1), ` + dueColumns

// hasWork reports whether a queue has pending tasks, even if the queue is paused. due is true if a task of any queue is
// due, or the pause of any queue has ended. If the query fails, pending is true: the claim will return the error.
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

// removeBodilessSQL examines the tasks $1 and the tasks at the head of queue $2, and removes those that have no body.
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

// claimPending claims up to limit pending tasks. If it claimed rows without a body, it removes such rows and claims
// again, so that these rows do not delay other tasks. If any task was claimed, there is no error.
func (st *Store) claimPending(ctx context.Context, req ClaimRequest, limit int) (claimed []Claimed, err error) {
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
	ClaimID  int64 // 0 = not given: the newest claim, if AppID and CallerID made it
	Lease    time.Duration
	Sending  bool // mark the task: the app is about to send the message
}

// extendSQL never shortens a lease. It keeps the time when the task was first marked as sending, and logs the new end
// of the lease. If $5 is true and the task expired before it was marked, extendSQL changes nothing.
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
	Sending    bool // the task is marked as sending, by this extension or an earlier one
}

// Extend extends a lease, so that it lasts at least e.Lease from now. If e.Sending is set, Extend marks the task as
// sending. If the claim has ended or is of another app or caller, or if the task expired before it was marked, the
// error is task.CodeStaleClaim. If there is no such task or the caller may not see it (see isVisible), the error is
// task.CodeNotFound. queues are the queues that the caller may use; empty = all.
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
	if !isVisible(t.Task, e.CallerID, queues) {
		return out, store.NotFound("task")
	}
	return out, task.Refuse(task.CodeStaleClaim, "this claim is not the task's live one, or not this caller's, or the task expired; stop working on the task")
}
