package deliver

import (
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/messages"
)

// pushedBytes counts the bytes of each caller's accepted messages to each stream within a period, so that push can tell who fills a
// stream without waiting for Postgres.
type pushedBytes struct {
	mu    sync.Mutex
	since time.Time
	bytes map[pushedKey]int64
}

type pushedKey struct {
	caller int64
	stream string
}

// add counts a message and returns the bytes of its caller to this stream in this period.
func (p *pushedBytes) add(caller int64, stream string, bytes int) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.bytes == nil || now.Sub(p.since) > messages.HoldPeriod {
		p.since, p.bytes = now, map[pushedKey]int64{}
	}
	key := pushedKey{caller, stream}
	p.bytes[key] += int64(bytes)
	return p.bytes[key]
}
