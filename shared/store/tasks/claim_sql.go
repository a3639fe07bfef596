package tasks

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// sharedLimit is the highest Limit of a claim that shares a statement with other claims. If 64 pollers claim
// one task each, shared statements take a quarter of the processor time of separate ones. A claim of
// many tasks costs the same either way, and separate statements run in parallel.
const sharedLimit = 10

// claimRows locks up to $2 rows of queue $1 from the head of the index task_live_ready. Tasks are in order of priority
// (0 is first), then retry_count (so new tasks come before retries), then age (oldest first). claimRows skips locked
// rows and expired tasks. If the queue is paused, it locks none.
const claimRows = `
with locked as materialized (
    select id, priority, retry_count from task_live
    where state = 1 and queue = $1 and (expires_at is null or expires_at > now()) and ` + notPaused + `
    order by priority, retry_count, id
    limit $2
    for update skip locked
)`

// claimRowsAbove is claimRows for the tasks at or above the low-water marks. $11 to $13 are the priority buckets
// (priority, retry_count) and their marks, in claim order. The claim does not scan the dead index entries below the
// marks. All conditions on index columns except the last column must be equalities: a row comparison such as (priority,
// retry_count) <= (1, 2) can fail at its second column, and Postgres does not end the scan there.
const claimRowsAbove = `
with locked as materialized (
    select r.* from unnest($11::smallint[], $12::smallint[], $13::uuid[]) as bucket (priority, retry_count, low)
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

// claimBodies follows the CTE locked. Each request gets the locked rows from number first to number last, counted from
// 1. A task without a body is claimed too: its columns from tasks are null.
const claimBodies = `
, requests as materialized (
    select request.*, now() + lease as lease_until
    from unnest($3::integer[], $4::integer[], $5::bigint[], $6::text[], $7::interval[], $8::boolean[], $9::jsonb[], $10::bigint[])
        with ordinality as request (first, last, claim_id, app_id, lease, marks_sending, data, claimed_by, nr)
), arrays as materialized (
    select array_agg(id) as ids, array_agg(priority) as priorities, array_agg(retry_count) as retry_counts from locked
), claimed as materialized (
    select requests.*, l.*, t.*
    from arrays cross join requests
    cross join lateral unnest(ids[first:last], priorities[first:last], retry_counts[first:last]) as l (id, priority, retry_count)
    left join lateral (select phone_number, content, caller_id, callback_url from tasks where tasks.id = l.id offset 0) t on true
), logged as (
    insert into send_logs (task_id, claim_id, app_id, phone_number, content, request_data, response_data)
    select id, claim_id, app_id, phone_number, content, data,
        jsonb_build_object('claim_id', claim_id, 'lease_until', lease_until, 'retry_count', retry_count)
    from claimed where phone_number is not null
), updated as (
    update task_live l set state = 2, claim_id = by.claim_id, app_id = by.app_id, due_at = by.lease_until, marks_sending = by.marks_sending,
        sending_at = null, ended = 0, updated_at = now(), claimed_by = by.claimed_by`

// updateForOne ends the CTE updated of a statement for a single request. The statement may have a generic plan
// (store.PlanOnceSQL): each possible plan finds the rows by their ids. updateForAll is for any number of requests. Its
// statement must be planned each time: a plan made for an empty table would scan the whole table.
const (
	updateForOne = `
    from requests by where l.id = any (array(select id from locked))
)`
	updateForAll = `
    from claimed by where l.id = by.id
)`
)

const claimEvents = `, events as (
    insert into event_outbox (kind, caller_id, ids)
    select kind, caller_id, array_agg(id) from (select claimed.*, 'task.processing' as kind from claimed) changed
    where callback_url is not null or ` + store.HasEndpoint + ` group by kind, caller_id
)`

const selectClaimed = `
select nr, id, priority, retry_count, claim_id, lease_until, phone_number, content from claimed`

const (
	claimSQL                      = claimRows + claimBodies + updateForOne + selectClaimed
	claimWithEventsSQL            = claimRows + claimBodies + updateForOne + claimEvents + selectClaimed
	claimAboveSQL                 = claimRowsAbove + claimBodies + updateForOne + selectClaimed
	claimAboveWithEventsSQL       = claimRowsAbove + claimBodies + updateForOne + claimEvents + selectClaimed
	sharedClaimSQL                = claimRows + claimBodies + updateForAll + selectClaimed
	sharedClaimWithEventsSQL      = claimRows + claimBodies + updateForAll + claimEvents + selectClaimed
	sharedClaimAboveSQL           = claimRowsAbove + claimBodies + updateForAll + selectClaimed
	sharedClaimAboveWithEventsSQL = claimRowsAbove + claimBodies + updateForAll + claimEvents + selectClaimed
)

// claimRound makes one claim, which may return tasks without a body.
func (st *Store) claimRound(ctx context.Context, req ClaimRequest) ([]Claimed, error) {
	if req.Limit <= sharedLimit {
		claimed, errs := st.claimQueues.of(st, req.Queue).Do([]ClaimRequest{req})
		return claimed[0], errs[0]
	}
	claimed, err := st.claimTogether(ctx, []ClaimRequest{req})
	if err != nil {
		return nil, err
	}
	return claimed[0], nil
}

// claimTogether makes the claims of several requests for one queue in one statement. If there are too few tasks, the
// last requests get fewer or none.
func (st *Store) claimTogether(ctx context.Context, reqs []ClaimRequest) ([][]Claimed, error) {
	queue, caller := reqs[0].Queue, reqs[0].CallerID
	if !slices.ContainsFunc(reqs, func(r ClaimRequest) bool { return r.CallerID != caller }) {
		ctx = store.WithCaller(ctx, caller) // limits the connections that one caller's claims of many queues use
	}
	buckets := st.marks.of(queue)
	claimed, took, err := st.runClaims(ctx, reqs, buckets)
	st.marks.advance(queue, claimed)
	if len(buckets) > 0 || err == nil && st.marks.observe(queue, took, len(claimed) > 0) {
		st.scanLater(queue)
	}
	return byRequest(claimed, len(reqs)), err
}

// byRequest returns the tasks of each request, in the order of the claim (priority, retry count, id).
func byRequest(claimed []Claimed, requests int) [][]Claimed {
	slices.SortFunc(claimed, func(a, b Claimed) int {
		return cmp.Or(cmp.Compare(a.request, b.request), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.RetryCount, b.RetryCount), a.ID.Compare(b.ID))
	})
	tasks := make([][]Claimed, requests)
	for start, end := 0, 0; start < len(claimed); start = end {
		request := claimed[start].request
		for end < len(claimed) && claimed[end].request == request {
			end++
		}
		tasks[request] = claimed[start:end:end]
	}
	return tasks
}

// The first statement of a claim locks the claim id of its first request until the transaction ends. If
// the response is lost, lockOwnClaimsSQL takes the same lock before the lookup. So the lookup waits for a
// claim that is still running and could be committed later.
const (
	lockClaim           = `pg_advisory_xact_lock(hashtextextended('claim ' || $1::bigint, 0))`
	beginClaimSQL       = store.PlanOnceSQL + `, ` + lockClaim
	beginSharedClaimSQL = `select ` + lockClaim
)

// NextClaimID returns an unused id for a claim.
func (st *Store) NextClaimID(ctx context.Context) (int64, error) {
	return st.claimIDs.next(ctx, st.db.Hot)
}

// runClaims claims tasks for the requests, and returns how long the transaction took. If there are buckets,
// it claims only tasks at or above their marks. If the response is lost, runClaims looks the claims up by their
// ids. So after a broken connection no task waits for the end of its lease or loses a retry.
func (st *Store) runClaims(ctx context.Context, reqs []ClaimRequest, buckets []priorityBucket) (claimed []Claimed, took time.Duration, err error) {
	var tried []claimTry
	mayBeCommitted := false
	err = st.db.RetryLostCommit(ctx, func(lost bool) error {
		if lost {
			mayBeCommitted = true
			st.claimIDs.drop()
			if claimed, err = st.committedClaims(ctx, reqs, tried); err != nil || len(claimed) > 0 {
				return err
			}
		}
		ids := make([]int64, len(reqs))
		for i := range reqs {
			if ids[i], err = st.NextClaimID(ctx); err != nil {
				return err
			}
			tried = append(tried, claimTry{ids[i], i})
		}
		begin, sql := st.claimStatement(len(reqs) == 1, len(buckets) > 0)
		claimed, took, err = st.queryClaims(ctx, begin, ids[0], sql, append(claimArgs(reqs, ids), bucketColumns(buckets)...)...)
		return err
	})
	if err != nil && (mayBeCommitted || len(claimed) > 0 || store.IsConnectionLost(err)) {
		now := time.Now()
		st.releaseLater(store.Column(tried, func(t claimTry) lostClaim { return lostClaim{t.id, reqs[t.request], now} }))
	}
	if st.db.EventMode == store.AllEvents && len(claimed) > 0 {
		st.db.OnEvents()
	}
	return claimed, took, err
}

// claimStatement returns the statement of a claim, and the statement that begins its transaction. If one is true, the
// claim is for a single request. If above is true, it claims only tasks at or above the low-water marks.
func (st *Store) claimStatement(one, above bool) (begin, sql string) {
	mode := st.db.EventMode
	switch {
	case one && above:
		return beginClaimSQL, mode.Pick(claimAboveSQL, claimAboveWithEventsSQL)
	case one:
		return beginClaimSQL, mode.Pick(claimSQL, claimWithEventsSQL)
	case above:
		return beginSharedClaimSQL, mode.Pick(sharedClaimAboveSQL, sharedClaimAboveWithEventsSQL)
	default:
		return beginSharedClaimSQL, mode.Pick(sharedClaimSQL, sharedClaimWithEventsSQL)
	}
}

// claimArgs returns the parameters $1 to $10, which all claim statements have.
func claimArgs(reqs []ClaimRequest, ids []int64) []any {
	first, last, total := make([]int32, len(reqs)), make([]int32, len(reqs)), int32(0)
	for i, r := range reqs {
		first[i] = total + 1
		total += int32(r.Limit)
		last[i] = total
	}
	return []any{
		reqs[0].Queue, total, first, last, ids,
		store.Column(reqs, func(r ClaimRequest) string { return r.AppID }),
		store.Column(reqs, func(r ClaimRequest) time.Duration { return r.Lease }),
		store.Column(reqs, func(r ClaimRequest) bool { return r.MarksSending }),
		store.Column(reqs, func(r ClaimRequest) string { return string(r.Request) }),
		store.Column(reqs, func(r ClaimRequest) int64 { return r.CallerID }),
	}
}

func (q *claimQueues) of(st *Store, queue string) *store.Coalescer[ClaimRequest, []Claimed] {
	q.mu.Lock()
	defer q.mu.Unlock()
	coalescer := q.byName[queue]
	if coalescer == nil {
		coalescer = store.NewCoalescer(func(r ClaimRequest) int64 { return r.CallerID }, func(ctx context.Context, reqs []ClaimRequest, _ bool) ([][]Claimed, error) {
			return st.claimTogether(ctx, reqs)
		})
		if q.byName == nil || len(q.byName) >= maxClaimQueues {
			q.byName = map[string]*store.Coalescer[ClaimRequest, []Claimed]{}
		}
		q.byName[queue] = coalescer
	}
	return coalescer
}
