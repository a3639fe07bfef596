package tasks

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// ClaimRequest asks for up to Limit pending tasks of one queue.
type ClaimRequest struct {
	Queue        string
	AppID        string
	CallerID     int64 // the caller that claims
	Limit        int
	Lease        time.Duration
	MarksSending bool   // the app promises to mark each task as sending before it sends
	WokenUp      bool   // the caller was woken because there are tasks
	Request      []byte // the call's parameters as JSON, for send_logs
}

// Claimed is one task claimed by one app until LeaseUntil.
type Claimed struct {
	ID         task.ID
	Priority   int16
	RetryCount int16
	ClaimID    int64
	LeaseUntil time.Time
	Phone      string
	Content    string

	bodiless bool // it has no row in tasks; only an attacker who controls a function can delete that
}

// claimBody is the rest of a claim after its CTE c has locked the rows: it claims them, writes
// the log and reads the bodies, in one statement and one commit. Rows are updated by id, never
// by a ctid read earlier. A row without a body is claimed too; its columns of tasks are null.
const claimBody = `
, k as materialized (
    select $7::bigint as claim_id, now() + $4::interval as lease_until
), u as (
    update task_live set state = 2, claim_id = k.claim_id, app_id = $3, due_at = k.lease_until, marks_sending = $5,
        sending_at = null, ended = 0, updated_at = now(), claimed_by = $8
    from k where id = any (array(select id from c))
), b as materialized (
    select c.id, c.priority, c.retry_count, t.phone_number, t.content, t.caller_id, t.callback_url
    from c left join lateral (select phone_number, content, caller_id, callback_url from tasks where tasks.id = c.id offset 0) t on true
), s as (
    insert into send_logs (task_id, claim_id, app_id, phone_number, content, request_data, response_data)
    select b.id, k.claim_id, $3, b.phone_number, b.content, $6::jsonb,
        jsonb_build_object('claim_id', k.claim_id, 'lease_until', k.lease_until, 'retry_count', b.retry_count)
    from b cross join k where b.phone_number is not null
)`

// claimEvents writes the events of a claim.
const claimEvents = `, e as (
    insert into event_outbox (kind, caller_id, ids)
    select kind, caller_id, array_agg(id) from (select b.*, 'task.processing' as kind from b) changed
    where callback_url is not null or ` + store.HasEndpoint + ` group by kind, caller_id
)`

const selectClaimed = `
select b.id, b.priority, b.retry_count, k.claim_id, k.lease_until, b.phone_number, b.content from b cross join k`

// claimRows selects from the head of the index task_live_ready: new tasks first, then retries
// by retry_count, each by age. Rows that another claim has locked are skipped. Expired tasks
// and paused queues return nothing.
const claimRows = `
with c as materialized (
    select id, priority, retry_count from task_live
    where state = 1 and queue = $1 and (expires_at is null or expires_at > now()) and ` + notPaused + `
    order by priority, retry_count, id
    limit $2
    for update skip locked
)`

// claimRowsAbove is claimRows with a low-water mark for each priority bucket (priority,
// retry_count) in $9..$11, in claim order. It does not scan the dead index entries below the
// marks.
const claimRowsAbove = `
with c as materialized (
    select r.* from unnest($9::smallint[], $10::smallint[], $11::uuid[]) as bucket (priority, retry_count, low)
    cross join lateral (
        select l.id, l.priority, l.retry_count from task_live l
        where l.state = 1 and l.queue = $1 and l.priority = bucket.priority and l.retry_count = bucket.retry_count
            and l.id >= bucket.low and (l.expires_at is null or l.expires_at > now())
        order by l.id
        limit $2
        for update skip locked
    ) r
    where ` + notPaused + `
    limit $2
)`

const (
	claimSQL                = claimRows + claimBody + selectClaimed
	claimWithEventsSQL      = claimRows + claimBody + claimEvents + selectClaimed
	claimAboveSQL           = claimRowsAbove + claimBody + selectClaimed
	claimAboveWithEventsSQL = claimRowsAbove + claimBody + claimEvents + selectClaimed
)

// Claim claims up to req.Limit tasks. When it finds fewer, it first processes due tasks, of
// its own queue and some of each other queue, and tries again, so that polling alone keeps
// tasks moving. pending counts, by queue, the tasks that this made pending and did not claim, so
// that other pollers can be woken. Claimed tasks are returned even when the
// second try fails, since their sender must get them. pending is returned with an error too.
//
// Most polls find nothing. Unless a claim is likely to succeed, a check comes first that costs
// a quarter of a claim.
func (st *Store) Claim(ctx context.Context, req ClaimRequest) (claimed []Claimed, pending PendingByQueue, err error) {
	try, due := st.claimDirectly(req), true
	if !try {
		try, due = st.hasWork(ctx, req.Queue)
	}
	if try {
		claimed, err = st.claimOnce(ctx, req, req.Limit)
		st.nonEmpty.set(req.Queue, len(claimed) > 0)
	}
	if err != nil || len(claimed) == req.Limit || !try && !due {
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

// claimDirectly reports whether to claim without checking first. With a low-water mark,
// claiming is cheaper than checking.
func (st *Store) claimDirectly(req ClaimRequest) bool {
	return req.WokenUp || st.nonEmpty.has(req.Queue) || len(st.marks.of(req.Queue, time.Now())) > 0
}

const hasWorkSQL = `select exists (select from task_live where state = 1 and queue = $1), ` + dueColumns

// hasWork reports whether a queue has pending tasks, paused or not, and whether anything is
// due. If the query fails, it reports pending tasks: the claim will return the error.
func (st *Store) hasWork(ctx context.Context, queue string) (pending, due bool) {
	var next nextDue
	err := st.db.Hot.QueryRow(ctx, hasWorkSQL, queue).Scan(&pending, &next.pause, &next.task, &next.now)
	return pending || err != nil, next.isPast(next.pause) || next.isPast(next.task)
}

// recentlyNonEmpty remembers queues whose last claim in this process returned a task. It is
// only a hint, so it is cleared when it is full.
type recentlyNonEmpty struct {
	mu    sync.Mutex
	names map[string]bool
}

func (g *recentlyNonEmpty) has(queue string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[queue]
}

func (g *recentlyNonEmpty) set(queue string, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !found {
		delete(g.names, queue)
		return
	}
	if g.names == nil || len(g.names) >= maxNonEmpty {
		g.names = map[string]bool{}
	}
	g.names[queue] = true
}

// maxNonEmpty limits the queues in recentlyNonEmpty.
const maxNonEmpty = 1000

// promoteRows limits the due tasks that a claim processes.
const promoteRows = 100

// removeRounds limits how often a claim removes bodiless rows. Each time it removes those that it has claimed, and those
// among the first removeRows rows of the queue.
const (
	removeRounds = 10
	removeRows   = "1000"
)

// removeBodilessSQL removes the rows $1, and those at the head of the queue $2, that have no body.
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
// do not make other tasks wait. Tasks are returned even when a later round fails.
func (st *Store) claimOnce(ctx context.Context, req ClaimRequest, limit int) (claimed []Claimed, err error) {
	for range removeRounds {
		var found []Claimed
		if found, err = st.claimRound(ctx, req, limit-len(claimed)); err != nil {
			break
		}
		complete := slices.DeleteFunc(slices.Clone(found), func(c Claimed) bool { return c.bodiless })
		claimed = append(claimed, complete...)
		if len(complete) == len(found) {
			break
		}
		bodiless := slices.DeleteFunc(found, func(c Claimed) bool { return !c.bodiless })
		if _, err = st.db.Hot.Exec(ctx, removeBodilessSQL, store.Column(bodiless, func(c Claimed) task.ID { return c.ID }), req.Queue); err != nil {
			break
		}
	}
	if len(claimed) > 0 {
		err = nil
	}
	return claimed, err
}

// claimRound makes one claim, which may include rows without a body.
func (st *Store) claimRound(ctx context.Context, req ClaimRequest, limit int) ([]Claimed, error) {
	args := []any{req.Queue, limit, req.AppID, req.Lease, req.MarksSending, string(req.Request), nil, req.CallerID}
	if buckets := st.marks.of(req.Queue, time.Now()); len(buckets) > 0 {
		claimed, _, err := st.runClaim(ctx, st.db.EventMode.Pick(claimAboveSQL, claimAboveWithEventsSQL), req, append(args, bucketColumns(buckets)...))
		if err != nil || len(claimed) > 0 {
			st.marks.advance(req.Queue, claimed)
			return claimed, err
		}
	}
	claimed, took, err := st.runClaim(ctx, st.db.EventMode.Pick(claimSQL, claimWithEventsSQL), req, args)
	if err == nil {
		st.marks.observe(req.Queue, claimed, took)
	}
	return claimed, err
}

// claimIDIndex is the index of the claim id among the arguments of claimBody.
const claimIDIndex = 6

// ownClaimSQL finds the tasks of a claim. It is used only after a lost response, so it has no
// index.
const ownClaimSQL = `
select l.id, l.priority, l.retry_count, l.claim_id, l.due_at, t.phone_number, t.content
from task_live l join tasks t on t.id = l.id
where l.claim_id = any($1::bigint[]) and l.app_id = $2 and l.claimed_by = $3 and l.state = 2`

// runClaim runs one claim and returns how long the statement took. If its response is lost, the
// claim is looked up by its id, so that a broken connection costs the tasks neither a lease
// nor a retry. Each try has its own id: after a failover another app may have got the previous one.
func (st *Store) runClaim(ctx context.Context, sql string, req ClaimRequest, args []any) (claimed []Claimed, took time.Duration, err error) {
	var tried []int64
	err = st.db.RetryLostCommit(ctx, func(again bool) error {
		if again {
			st.claimIDs.drop()
			if claimed, _, err = st.queryClaim(ctx, ownClaimSQL, tried, req.AppID, req.CallerID); err != nil || len(claimed) > 0 {
				return err
			}
		}
		var id int64
		if id, err = st.NextClaimID(ctx); err != nil {
			return err
		}
		tried, args[claimIDIndex] = append(tried, id), id
		claimed, took, err = st.queryClaim(ctx, sql, args...)
		return err
	})
	if st.db.EventMode == store.AllEvents && len(claimed) > 0 {
		st.db.OnEvents()
	}
	slices.SortFunc(claimed, func(a, b Claimed) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.RetryCount, b.RetryCount), a.ID.Compare(b.ID))
	})
	return claimed, took, err
}

func (st *Store) queryClaim(ctx context.Context, sql string, args ...any) ([]Claimed, time.Duration, error) {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Release()
	start := time.Now()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, 0, store.WrapConnectionLost(conn.Conn(), err)
	}
	claimed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Claimed, err error) {
		var phone, content *string
		err = row.Scan(&c.ID, &c.Priority, &c.RetryCount, &c.ClaimID, &c.LeaseUntil, &phone, &content)
		if c.bodiless = phone == nil; !c.bodiless {
			c.Phone, c.Content = *phone, *content
		}
		return c, err
	})
	return claimed, time.Since(start), store.WrapConnectionLost(conn.Conn(), err)
}

// NextClaimID returns an id for a claim that is about to be made.
func (st *Store) NextClaimID(ctx context.Context) (int64, error) {
	return st.claimIDs.next(ctx, st.db.Hot)
}

// claimIDs takes claim ids from the sequence claim_seq in blocks, so that an id is known before its
// claim. Ids are unique; their order means nothing.
type claimIDs struct {
	mu         sync.Mutex
	last, free int64
}

// claimBlockSQL takes one block of claimBlock ids: that is the increment of the sequence.
const (
	claimBlock    = 1000
	claimBlockSQL = `select nextval('claim_seq')`
)

func (c *claimIDs) next(ctx context.Context, from *pgxpool.Pool) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free == 0 {
		if err := from.QueryRow(store.WithoutCaller(ctx), claimBlockSQL, store.Unprepared).Scan(&c.last); err != nil {
			return 0, err
		}
		c.last, c.free = c.last-1, claimBlock
	}
	c.last, c.free = c.last+1, c.free-1
	return c.last, nil
}

// drop discards the rest of the block. It must be called when a connection broke: nextval does
// not wait for a standby, so a promoted standby may return the block again.
func (c *claimIDs) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = 0
}

// Extension extends the lease of one claim.
type Extension struct {
	TaskID task.ID
	AppID  string
	// CallerID must be the caller that claimed.
	CallerID int64
	ClaimID  int64 // 0 = not given; then the app alone identifies the claim
	Lease    time.Duration
	Sending  bool // the message is about to be sent
}

// extendSQL never shortens a lease and keeps the first mark of sending. The log has the new end of the lease.
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

// Extend extends a lease, counted from the time of the database, and may mark the task as sending. If the
// claim is not the task's live one, the error is stale_claim. queues are those that the caller
// may use; empty = all.
func (st *Store) Extend(ctx context.Context, e Extension, queues []string) (Extended, error) {
	var out Extended
	if queues == nil {
		queues = []string{}
	}
	err := st.db.WithPartitions(ctx, func() error {
		return st.db.Hot.QueryRow(ctx, extendSQL, e.TaskID, e.AppID, e.ClaimID, e.Lease.Seconds(), e.Sending, queues, e.CallerID).
			Scan(&out.ClaimID, &out.LeaseUntil, &out.Sending)
	})
	if err == nil {
		return out, nil
	}
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
