package tasks

import (
	"context"
	"sync"

	"github.com/sendonce/sendonce/shared/store"
)

// claimQueues has one Coalescer of claims for each queue, so that slow claims of one queue do not
// delay claims of other queues.
type claimQueues struct {
	mu     sync.Mutex
	byName map[string]*store.Coalescer[ClaimRequest, []Claimed]
}

// maxClaimQueues limits the queues in claimQueues. When claimQueues is full, it is cleared: claims under way
// keep their Coalescer, and later claims get a new one.
const maxClaimQueues = 1000

func (q *claimQueues) of(st *Store, queue string) *store.Coalescer[ClaimRequest, []Claimed] {
	q.mu.Lock()
	defer q.mu.Unlock()
	group := q.byName[queue]
	if group == nil {
		group = store.NewCoalescer(func(r ClaimRequest) int64 { return r.CallerID }, func(ctx context.Context, reqs []ClaimRequest, _ bool) ([][]Claimed, error) {
			return st.claimTogether(ctx, reqs)
		})
		if q.byName == nil || len(q.byName) >= maxClaimQueues {
			q.byName = map[string]*store.Coalescer[ClaimRequest, []Claimed]{}
		}
		q.byName[queue] = group
	}
	return group
}
