package tasks

import (
	"sync"

	"github.com/sendonce/sendonce/shared/store"
)

// claimQueues has the group commit of claims of each queue, so that slow claims of one queue do not
// delay those of others.
type claimQueues struct {
	mu     sync.Mutex
	byName map[string]*store.Coalescer[ClaimRequest, []Claimed]
}

// maxClaimQueues limits the queues in claimQueues, which is cleared when it is full: claims under way
// keep their group, and later claims begin a new one.
const maxClaimQueues = 1000
