package save

import (
	"sync"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/telemetry"
)

const maxSenders = 10_000 // senders that reorderCounter remembers; if there are more, it forgets all

// reorderCounter counts messages that this process saves after a later message of the stream: ReorderByAcceptSeq
// after a later message of the same shard, ReorderByFrom after a later message of the same sender. The messages of a
// sender are saved in their order, except missing ones (saveMissing). Without missing messages ReorderByFrom stays 0.
type reorderCounter struct {
	mu      sync.Mutex
	shards  map[int]int64    // by shard: the highest sequence number saved
	senders map[string]int64 // by sender: the same
}

func (r *reorderCounter) count(m *messages.Submission, shards int, metrics telemetry.TwoPhase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.senders) > maxSenders {
		clear(r.senders)
	}
	shard := bus.ShardOf(m.From, shards)
	if r.shards[shard] > m.AcceptSeq {
		metrics.ReorderByAcceptSeq.Inc()
	}
	if r.senders[m.From] > m.AcceptSeq {
		metrics.ReorderByFrom.Inc()
	}
	r.shards[shard], r.senders[m.From] = max(r.shards[shard], m.AcceptSeq), max(r.senders[m.From], m.AcceptSeq)
}
