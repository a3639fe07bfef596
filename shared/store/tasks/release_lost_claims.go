package tasks

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	firstReleaseWait   = time.Second      // from the failure of a claim until the first try to release its tasks
	longestReleaseWait = 15 * time.Second // between two tries; each wait is twice the one before
	releaseTimeout     = 10 * time.Second // of one try
)

// lostClaimsSQL finds the tasks that lost claims have claimed, except tasks that were marked later. After a failover, or a crash of
// Postgres, another claim of the same app may have the id of a lost claim: its tasks were updated after the lost claim had failed.
const lostClaimsSQL = `
select t.nr, l.id
from unnest($1::bigint[], $2::text[], $3::bigint[], $4::timestamptz[]) with ordinality as t (claim_id, app_id, claimed_by, failed_at, nr)
join task_live l on l.claim_id = t.claim_id and l.app_id = t.app_id and l.claimed_by = t.claimed_by and l.state = 2
where l.updated_at <= t.failed_at and l.sending_at is null`

// releaseLater releases the tasks of failed claims in the background.
func (st *Store) releaseLater(claims []lostClaim) {
	if st.lostClaims.add(claims...) {
		time.AfterFunc(firstReleaseWait, func() { st.releaseLost(firstReleaseWait) })
	}
}

// releaseLost tries to release the tasks of all lost claims. If some could not be released, it tries again later, as long as their
// leases last.
func (st *Store) releaseLost(waited time.Duration) {
	if st.lostClaims.forget(st.release(st.lostClaims.leased())) {
		wait := min(2*waited, longestReleaseWait)
		time.AfterFunc(wait, func() { st.releaseLost(wait) })
	}
}

// release releases the tasks of those claims that were committed. settled are the claims that have no
// task any more, and need no other try. Errors are not logged: the failed claim was, and if no try succeeds, its tasks wait for the end
// of their leases.
func (st *Store) release(claims []lostClaim) (settled []lostClaim) {
	if len(claims) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	reports := make([][]*Report, len(claims)) // for each claim
	if err := st.findLost(ctx, claims, func(i int, id task.ID) {
		c := claims[i]
		reports[i] = append(reports[i], &Report{Request: c.req.Request, Report: task.Report{
			TaskID: id, AppID: c.req.AppID, CallerID: c.req.CallerID, ClaimID: c.id, Outcome: task.Released, Message: "the response to the claim was lost",
		}})
	}); err != nil {
		return nil
	}
	for i, c := range claims {
		if _, errs := st.Report(reports[i]); errors.Join(errs...) != nil {
			continue
		}
		settled = append(settled, c)
		if len(reports[i]) > 0 {
			st.onPending(c.req.Queue, len(reports[i]))
		}
	}
	return settled
}

// findLost calls found for each task that a lost claim has; i is the index of the claim. Before that, it waits for claims that are
// still running.
func (st *Store) findLost(ctx context.Context, claims []lostClaim, found func(i int, id task.ID)) error {
	ids := store.Column(claims, func(c lostClaim) int64 { return c.id })
	var batch pgx.Batch
	batch.Queue(lockOwnClaimsSQL, ids)
	batch.Queue(lostClaimsSQL, ids, store.Column(claims, func(c lostClaim) string { return c.req.AppID }),
		store.Column(claims, func(c lostClaim) int64 { return c.req.CallerID }), store.Column(claims, func(c lostClaim) time.Time { return c.failedAt }),
	).Query(func(rows pgx.Rows) error {
		var nr int64
		var id task.ID
		return store.Each(rows, []any{&nr, &id}, func() { found(int(nr)-1, id) })
	})
	return st.db.Hot.SendBatch(ctx, &batch).Close()
}
