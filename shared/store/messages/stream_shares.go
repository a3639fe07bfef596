package messages

import (
	"context"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/quota"
)

const (
	sharesEvery  = 2 * time.Second
	sharesDelay  = 500 * time.Millisecond // before a query, so that the first call of a process does not wait for a second connection
	shareRetry   = time.Minute            // Retry-After of a refused call
	sharesMaxAge = 10 * time.Second       // of a result: an older one says nothing about now
)

// streamShares caches which accounts use more than their share of a stream. While messages are submitted, the cache is
// refreshed about every 2.5 seconds.
type streamShares struct {
	query func(ctx context.Context) (map[usageKey]bool, error)

	mu         sync.Mutex
	over       map[usageKey]bool // by stream and account
	readAt     time.Time         // when over was read
	next       time.Time         // the earliest next query
	refreshing bool
}

// exceeded reports whether an account used more than its share of one of the streams at the last query. It starts a
// query if one is due, and does not wait for it.
func (s *streamShares) exceeded(account int64, streams []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refreshing && time.Now().After(s.next) {
		s.refreshing = true
		time.AfterFunc(sharesDelay, s.refresh)
	}
	if time.Since(s.readAt) > sharesMaxAge {
		return false
	}
	for _, stream := range streams {
		if s.over[usageKey{stream, account}] {
			return true
		}
	}
	return false
}

func (s *streamShares) refresh() {
	ctx, cancel := context.WithTimeout(context.Background(), quota.CountTimeout)
	defer cancel()
	began := time.Now()
	over, err := s.query(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshing, s.next = false, time.Now().Add(sharesEvery)
	switch {
	case err == nil:
		s.over, s.readAt = over, time.Now()
	case began.Sub(s.readAt) <= sharesMaxAge: // while the database is unavailable, the last result is used
		s.readAt = time.Now()
	}
}
