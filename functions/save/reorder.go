package save

import (
	"sync"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/telemetry"
)

// maxSenders limits the senders in memory.
const maxSenders = 10_000

// reorderCounter counts messages that this process saves out of the stream's order: within a shard,
// and within the messages of one sender, where the order is guaranteed and the count must stay 0.
type reorderCounter struct {
	mu      sync.Mutex
	shards  map[int]int64    // the highest sequence saved, by shard
	senders map[string]int64 // the same by sender
}

func (o *reorderCounter) count(m *messages.Submission, shards int, metrics telemetry.TwoPhase) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.senders == nil || len(o.senders) > maxSenders {
		o.senders = map[string]int64{}
	}
	if o.shards == nil {
		o.shards = map[int]int64{}
	}
	shard := bus.ShardOf(m.From, shards)
	if o.shards[shard] > m.AcceptSeq {
		metrics.ReorderByAcceptSeq.Inc()
	}
	if o.senders[m.From] > m.AcceptSeq {
		metrics.ReorderByFrom.Inc()
	}
	o.shards[shard], o.senders[m.From] = max(o.shards[shard], m.AcceptSeq), max(o.senders[m.From], m.AcceptSeq)
}
