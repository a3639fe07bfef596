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

// Claim claims up to req.Limit tasks. If it finds fewer, it processes due tasks, of its own queue and
// some of each other queue, and tries again, so that due tasks are processed even if only claims run.
// pending counts, by queue, the tasks that the call made pending and did not claim, so that other
// pollers can be woken. pending is returned with an error too. If any task was claimed, there is no error.
//
// Most polls find nothing. Unless a claim is likely to succeed, hasWork comes first: it costs a quarter
// of a claim.
//
// While low-water marks are in use, a scan in the background processes due tasks, and finds tasks below
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
	swept, err := st.sweep(ctx, promoteRows, req.Queue)
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

// hasWork reports whether a queue has pending tasks, paused or not, and whether anything is
// due. If the query fails, it reports pending tasks: the claim will return the error.
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
	removeRounds = 10     // how often a claim removes bodiless rows
	removeRows   = "1000" // how many rows at the head of the queue it examines each time
)

// removeBodilessSQL removes those of the rows $1, and of the head of the queue $2, that have no body.
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

// claimOnce claims up to limit tasks. It removes rows without a body and claims again, so that they
// do not delay other tasks. If any task was claimed, there is no error.
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
	ClaimID  int64 // 0 = not given; then the app alone identifies the claim
	Lease    time.Duration
	Sending  bool // the message is about to be sent
}

// extendSQL never shortens a lease, keeps the time of the first mark of sending, and logs the new end of the lease.
const extendSQL = `
with extended as (
    update task_live set due_at = greatest(due_at, now() + make_interval(secs => $4)), updated_at = now(),
        sending_at = case when $5 then coalesce(sending_at, now()) else sending_at end
    where id = $1 and state = 2 and app_id = $2 and ($3::bigint = 0 or claim_id = $3) and (cardinality($6::text[]) = 0 or queue = any($6))
        and claimed_by = $7
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

// Extend extends a lease to e.Lease from now, and may mark the task as sending. If the claim is not the
// task's live one, the error is task.CodeStaleClaim. queues are those that the caller may use; empty = all.
func (st *Store) Extend(ctx context.Context, e Extension, queues []string) (Extended, error) {
	var out Extended
	err := st.db.WithPartitions(ctx, func() error {
		return st.db.Hot.QueryRow(ctx, extendSQL, e.TaskID, e.AppID, e.ClaimID, e.Lease.Seconds(), e.Sending, store.NotNull(queues), e.CallerID).
			Scan(&out.ClaimID, &out.LeaseUntil, &out.Sending)
	})
	if !errors.Is(err, pgx.ErrNoRows) {
		return out, store.Wrap("extend", err)
	}
	t, err := st.ByID(ctx, e.TaskID)
	if err != nil {
		return out, err
	}
	if len(queues) > 0 && !slices.Contains(queues, t.Queue) {
		return out, store.NotFound("task")
	}
	return out, task.Refuse(task.CodeStaleClaim, "this claim is not the task's live one, or not this caller's; stop working on the task")
}
