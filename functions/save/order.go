package save

import (
	"sync"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
)

// maxSenders bounds what is remembered of senders.
const maxSenders = 10_000

// order counts what is saved out of the stream's order, as far as this process
// saved it: in a shard, and of one sender, which must not be (seed 004 section 6).
type order struct {
	mu     sync.Mutex
	shards map[int]int64 // the last place saved
	from   map[string]int64
}

func (o *order) note(m *store.NewMessage, shards int, metrics fn.TwoPhaseMetrics) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.from == nil || len(o.from) > maxSenders {
		o.from = map[string]int64{}
	}
	if o.shards == nil {
		o.shards = map[int]int64{}
	}
	shard := bus.ShardOf(m.From, shards)
	if o.shards[shard] > m.AcceptSeq {
		metrics.ReorderByAcceptSeq.Inc()
	}
	if o.from[m.From] > m.AcceptSeq {
		metrics.ReorderByFrom.Inc()
	}
	o.shards[shard], o.from[m.From] = max(o.shards[shard], m.AcceptSeq), max(o.from[m.From], m.AcceptSeq)
}
