// Package loglimit keeps an event that repeats from filling the log.
package loglimit

import (
	"sync"
	"time"
)

// Limit lets one log line through in each interval and counts the events between. The zero value
// has an interval of a minute. It is safe for concurrent use.
type Limit struct {
	Every time.Duration // between two lines; 0 = time.Minute. Not to be changed during a call

	mu       sync.Mutex
	unlogged uint64
	loggedAt time.Time
}

// Next counts an event. It returns whether to log it, and if so how many were not logged since the
// line before.
func (l *Limit) Next() (unlogged uint64, log bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	every := l.Every
	if every == 0 {
		every = time.Minute
	}
	if !l.loggedAt.IsZero() && time.Since(l.loggedAt) < every {
		l.unlogged++
		return 0, false
	}
	unlogged = l.unlogged
	l.unlogged, l.loggedAt = 0, time.Now()
	return unlogged, true
}
