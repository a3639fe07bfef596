package deliver

import (
	"sync"
	"time"
)

const pushedPeriod = 15 * time.Minute

// pushedBytes counts the bytes of each caller's accepted messages within a period, so that push can tell who fills a stream
// without waiting for Postgres.
type pushedBytes struct {
	mu       sync.Mutex
	since    time.Time
	byCaller map[int64]int64
}

// add counts a message and returns the bytes of its caller in this period.
func (p *pushedBytes) add(caller int64, bytes int) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.byCaller == nil || now.Sub(p.since) > pushedPeriod {
		p.since, p.byCaller = now, map[int64]int64{}
	}
	p.byCaller[caller] += int64(bytes)
	return p.byCaller[caller]
}
