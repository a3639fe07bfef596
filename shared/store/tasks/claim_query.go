package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
)

// claimTry is one try of a request: a claim that may have been sent to Postgres. Each try has a new claim id: after a
// failover, the claim of another app may have the id of an earlier try.
type claimTry struct {
	id      int64
	request int // index of the request
}

// lockOwnClaimsSQL waits for claims that are still running.
const lockOwnClaimsSQL = `select pg_advisory_xact_lock(hashtextextended('claim ' || id, 0)) from unnest($1::bigint[]) id`

// ownClaimsSQL finds the tasks of claims whose response was lost. Such a loss is rare, so there is no index for this
// query.
const ownClaimsSQL = `
select t.nr, l.id, l.priority, l.retry_count, l.claim_id, l.due_at, body.phone_number, body.content
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) as t (claim_id, app_id, claimed_by, nr)
join task_live l on l.claim_id = t.claim_id and l.app_id = t.app_id and l.claimed_by = t.claimed_by and l.state = 2
join tasks body on body.id = l.id`

// committedClaims returns the tasks that these tries have claimed, of the claims that were committed and have not ended.
func (st *Store) committedClaims(ctx context.Context, reqs []ClaimRequest, tried []claimTry) ([]Claimed, error) {
	own := store.Column(tried, func(t claimTry) int64 { return t.id })
	claimed, _, err := st.queryClaims(ctx, lockOwnClaimsSQL, own, ownClaimsSQL, own,
		store.Column(tried, func(t claimTry) string { return reqs[t.request].AppID }),
		store.Column(tried, func(t claimTry) int64 { return reqs[t.request].CallerID }),
		store.Column(tried, func(t claimTry) int64 { return int64(t.request) + 1 }))
	return claimed, err
}

// queryClaims runs two statements in one transaction: begin, and then sql, which returns claimed tasks.
func (st *Store) queryClaims(ctx context.Context, begin string, beginArg any, sql string, args ...any) (claimed []Claimed, took time.Duration, err error) {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Release()
	start := time.Now()
	var batch pgx.Batch
	batch.Queue(begin, beginArg)
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		var c Claimed
		var nr int64
		var phone, content *string
		return store.Each(rows, []any{&nr, &c.ID, &c.Priority, &c.RetryCount, &c.ClaimID, &c.LeaseUntil, &phone, &content}, func() {
			c.request, c.bodiless, c.Phone, c.Content = int(nr)-1, phone == nil, store.OrZero(phone), store.OrZero(content)
			claimed = append(claimed, c)
		})
	})
	err = conn.SendBatch(ctx, &batch).Close()
	return claimed, time.Since(start), store.WrapConnectionLost(conn.Conn(), err)
}
