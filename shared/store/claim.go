package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// ClaimRequest asks for up to Limit pending tasks of one queue.
type ClaimRequest struct {
	Queue        string
	AppID        string
	CallerID     int64 // whose the claim is
	Limit        int
	Lease        time.Duration
	MarksSending bool   // the app promises to mark each task as sending before it sends
	Woken        bool   // somebody said that there are tasks
	Request      []byte // the call's parameters as JSON, for send_logs
}

// Claimed is one task handed to one app until LeaseUntil.
type Claimed struct {
	ID         task.ID
	Priority   int16
	RetryCount int16
	ClaimID    int64
	LeaseUntil time.Time
	Phone      string
	Content    string
}

// claimBody is the rest of a claim after its CTE c has locked the rows: they
// change hands, the log and the event are written and the bodies are read, in
// one statement and one commit. It updates by id, never by a ctid read earlier.
const claimBody = `
, k as materialized (
    select $7::bigint as claim_id, now() + $4::interval as lease_until
), u as (
    update task_live set state = 2, claim_id = k.claim_id, app_id = $3, due_at = k.lease_until, marks_sending = $5,
        sending_at = null, ended = 0, updated_at = now(), claimed_by = $8, owned_claim = k.claim_id
    from k where id = any (array(select id from c))
), b as materialized (
    select c.id, c.priority, c.retry_count, t.phone_number, t.content, t.caller_id, t.callback_url
    from c cross join lateral (select phone_number, content, caller_id, callback_url from tasks where tasks.id = c.id offset 0) t
), s as (
    insert into send_logs (task_id, claim_id, app_id, phone_number, content, request_data, response_data)
    select b.id, k.claim_id, $3, b.phone_number, b.content, $6::jsonb,
        jsonb_build_object('claim_id', k.claim_id, 'lease_until', k.lease_until, 'retry_count', b.retry_count)
    from b cross join k
)`

// claimTold writes the event of a claim.
const claimTold = `, e as (
    insert into event_outbox (kind, caller_id, ids)
    select kind, caller_id, array_agg(id) from (select b.*, 'task.processing' as kind from b) told
    where callback_url is not null or ` + endpointed + ` group by kind, caller_id
)`

const claimAnswer = `
select b.id, b.priority, b.retry_count, k.claim_id, k.lease_until, b.phone_number, b.content from b cross join k`

// claimRows takes the left edge of task_live_ready: new tasks first, then
// retries by retry_count, each by age (seed 001 section 6.3). A row that
// another claim holds is skipped, what has expired is never handed out, and a
// paused queue hands out nothing.
const claimRows = `
with c as materialized (
    select id, priority, retry_count from task_live
    where state = 1 and queue = $1 and (expires_at is null or expires_at > now()) and ` + notPaused + `
    order by priority, retry_count, id
    limit $2
    for update skip locked
)`

// claimRowsAbove is claimRows with a floor for each lane (priority, retry_count)
// in $9..$11, in claim order: it does not walk the dead index entries below.
const claimRowsAbove = `
with c as materialized (
    select r.* from unnest($9::smallint[], $10::smallint[], $11::uuid[]) as lane (priority, retry_count, low)
    cross join lateral (
        select l.id, l.priority, l.retry_count from task_live l
        where l.state = 1 and l.queue = $1 and l.priority = lane.priority and l.retry_count = lane.retry_count
            and l.id >= lane.low and (l.expires_at is null or l.expires_at > now())
        order by l.id
        limit $2
        for update skip locked
    ) r
    where ` + notPaused + `
    limit $2
)`

const (
	claimSQL          = claimRows + claimBody + claimAnswer
	claimToldSQL      = claimRows + claimBody + claimTold + claimAnswer
	claimAboveSQL     = claimRowsAbove + claimBody + claimAnswer
	claimAboveToldSQL = claimRowsAbove + claimBody + claimTold + claimAnswer
)

// Claim hands out up to req.Limit tasks. When there are fewer it first lets
// what fell due happen, of its own queue and then some of all, and looks again, so that
// pollers alone keep the job going. touched says what that made pending and this claim left, for whoever
// waits.
// What was claimed is returned even when the second look fails: it must reach
// its sender; and touched is returned with the error when nothing was.
//
// Most polls find nothing: unless there is reason to hope, a look that is a
// quarter of the work comes first.
func (db *DB) Claim(ctx context.Context, req ClaimRequest) (claimed []Claimed, touched Touched, err error) {
	hope, due := db.hopeful(req), true
	if !hope {
		hope, due = db.anythingFor(ctx, req.Queue)
	}
	if hope {
		claimed, err = db.claimOnce(ctx, req, req.Limit)
		db.giving.set(req.Queue, len(claimed) > 0)
	}
	if err != nil || len(claimed) == req.Limit || !hope && !due {
		return claimed, nil, failed("claim", err)
	}
	swept, err := db.sweep(ctx, promoteRows, req.Queue)
	if err == nil && swept.Pending[req.Queue] > 0 {
		var more []Claimed
		more, err = db.claimOnce(ctx, req, req.Limit-len(claimed))
		claimed = append(claimed, more...)
		swept.Pending[req.Queue] -= len(more)
	}
	if len(claimed) > 0 {
		err = nil
	}
	return claimed, swept.Pending, failed("claim", err)
}

// hopeful tells whether to claim at once. Where floors hold, a claim walks less than
// the look does.
func (db *DB) hopeful(req ClaimRequest) bool {
	return req.Woken || db.giving.has(req.Queue) || len(db.floors.of(req.Queue, time.Now())) > 0
}

const anythingSQL = `select exists (select from task_live where state = 1 and queue = $1), ` + dueColumns

// anythingFor tells whether a queue has pending tasks, paused or not, and whether
// anything at all fell due. What cannot be asked may be: the claim will say more.
func (db *DB) anythingFor(ctx context.Context, queue string) (pending, due bool) {
	var next nextDue
	err := db.hot.QueryRow(ctx, anythingSQL, queue).Scan(&pending, &next.pause, &next.task, &next.now)
	return pending || err != nil, next.isPast(next.pause) || next.isPast(next.task)
}

// givingQueues are those whose last claim here got a task: there are likely more.
// It is a hint, so it is forgotten before it grows: a queue that is claimed from no
// more would stay.
type givingQueues struct {
	mu    sync.Mutex
	names map[string]bool
}

func (g *givingQueues) has(queue string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[queue]
}

func (g *givingQueues) set(queue string, gave bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !gave {
		delete(g.names, queue)
		return
	}
	if g.names == nil || len(g.names) >= maxGiving {
		g.names = map[string]bool{}
	}
	g.names[queue] = true
}

// maxGiving bounds the queues that are remembered.
const maxGiving = 1000

// promoteRows bounds what a claim promotes of its queue, and of all.
const promoteRows = 100

func (db *DB) claimOnce(ctx context.Context, req ClaimRequest, limit int) ([]Claimed, error) {
	args := []any{req.Queue, limit, req.AppID, req.Lease, req.MarksSending, string(req.Request), nil, req.CallerID}
	if lanes := db.floors.of(req.Queue, time.Now()); len(lanes) > 0 {
		claimed, _, err := db.runClaim(ctx, db.events.pick(claimAboveSQL, claimAboveToldSQL), req, append(args, laneColumns(lanes)...))
		if err != nil || len(claimed) > 0 {
			db.floors.raise(req.Queue, claimed)
			return claimed, err
		}
	}
	claimed, took, err := db.runClaim(ctx, db.events.pick(claimSQL, claimToldSQL), req, args)
	if err == nil {
		db.floors.learn(req.Queue, claimed, took)
	}
	return claimed, err
}

// claimIDAt is the place of the claim's id among the arguments of claimBody.
const claimIDAt = 6

// ownClaimSQL finds what a claim took. It needs no index: it is asked only when
// an answer was lost.
const ownClaimSQL = `
select l.id, l.priority, l.retry_count, l.claim_id, l.due_at, t.phone_number, t.content
from task_live l join tasks t on t.id = l.id
where l.claim_id = any($1::bigint[]) and l.app_id = $2 and l.claimed_by = $3 and l.state = 2`

// runClaim runs one claim and says how long the statement alone took. When its
// answer is lost it is looked up by its id: a connection that broke must not
// cost the tasks a lease and a retry. Each try has an id of its own: after a
// failover another app may have the one before.
func (db *DB) runClaim(ctx context.Context, sql string, req ClaimRequest, args []any) (claimed []Claimed, took time.Duration, err error) {
	var tried []int64
	err = db.retrying(ctx, func(again bool) error {
		if again {
			db.claimIDs.drop()
			if claimed, _, err = db.queryClaim(ctx, ownClaimSQL, tried, req.AppID, req.CallerID); err != nil || len(claimed) > 0 {
				return err
			}
		}
		var id int64
		if id, err = db.claimIDs.next(ctx, db.hot); err != nil {
			return err
		}
		tried, args[claimIDAt] = append(tried, id), id
		claimed, took, err = db.queryClaim(ctx, sql, args...)
		return err
	})
	if db.events == AllEvents && len(claimed) > 0 {
		db.onEvents()
	}
	slices.SortFunc(claimed, func(a, b Claimed) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.RetryCount, b.RetryCount), a.ID.Compare(b.ID))
	})
	return claimed, took, err
}

func (db *DB) queryClaim(ctx context.Context, sql string, args ...any) ([]Claimed, time.Duration, error) {
	conn, err := db.hot.Acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Release()
	start := time.Now()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, 0, markLost(conn.Conn(), err)
	}
	claimed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Claimed])
	return claimed, time.Since(start), markLost(conn.Conn(), err)
}

// claimIDs hands out the ids of claims from blocks of the sequence, so that an
// id is known before its claim. Ids are unique; their order means nothing.
type claimIDs struct {
	mu         sync.Mutex
	last, free int64
}

// claimBlockSQL takes one block; the sequence's increment is its length.
const (
	claimBlock    = 1000
	claimBlockSQL = `select nextval('claim_seq')`
)

func (c *claimIDs) next(ctx context.Context, from *pgxpool.Pool) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free == 0 {
		if err := from.QueryRow(withoutCaller(ctx), claimBlockSQL, unprepared).Scan(&c.last); err != nil {
			return 0, err
		}
		c.last, c.free = c.last-1, claimBlock
	}
	c.last, c.free = c.last+1, c.free-1
	return c.last, nil
}

// drop lets the rest of the block go, as must be when a connection broke: nextval
// does not wait for a standby, and one that took over may give the block out again.
func (c *claimIDs) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = 0
}

// Extension lengthens the lease of one claim.
type Extension struct {
	TaskID task.ID
	AppID  string
	// CallerID must be the caller that claimed, if that is known.
	CallerID int64
	ClaimID  int64 // 0 = not given; then the app alone tells the claim
	Lease    time.Duration
	Sending  bool // the bytes are about to leave
}

// extendSQL never shortens a lease and keeps the first mark of sending.
const extendSQL = `
update task_live set due_at = greatest(due_at, now() + make_interval(secs => $4)), updated_at = now(),
    sending_at = case when $5 then coalesce(sending_at, now()) else sending_at end
where id = $1 and state = 2 and app_id = $2 and ($3::bigint = 0 or claim_id = $3) and (cardinality($6::text[]) = 0 or queue = any($6))
    and (claimed_by = $7 or claimed_by is null or owned_claim is distinct from claim_id)
returning claim_id, due_at, sending_at is not null`

// Extended is a lease after its extension.
type Extended struct {
	ClaimID    int64
	LeaseUntil time.Time
	Sending    bool
}

// Extend lengthens a lease, from the database's now, and may mark the task as
// sending. A claim that is no longer the live one is stale_claim. queues are
// those that the caller may use; empty = all.
func (db *DB) Extend(ctx context.Context, e Extension, queues []string) (Extended, error) {
	var out Extended
	if queues == nil {
		queues = []string{}
	}
	err := db.hot.QueryRow(ctx, extendSQL, e.TaskID, e.AppID, e.ClaimID, e.Lease.Seconds(), e.Sending, queues, e.CallerID).
		Scan(&out.ClaimID, &out.LeaseUntil, &out.Sending)
	if err == nil {
		return out, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return out, failed("extend", err)
	}
	t, err := db.Task(ctx, e.TaskID)
	if err != nil {
		return out, err
	}
	if len(queues) > 0 && !slices.Contains(queues, t.Queue) {
		return out, errNotFound("task")
	}
	return out, task.Refuse(task.CodeStaleClaim, "this claim is not the task's live one, or not this caller's; stop working on the task")
}
