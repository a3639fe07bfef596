package tasks

import (
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
