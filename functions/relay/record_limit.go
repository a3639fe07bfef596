package relay

import (
	"context"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
)

const (
	maxUnrecorded   = 1000                  // published events that deliver has not recorded; if there are more, further events must wait
	eventsPerCheck  = 500                   // published events between two checks
	checkTimeout    = time.Second           // of one check
	pauseAtLimit    = 20 * time.Millisecond // before the next check while the limit is reached
	pauseAfterError = 5 * time.Second       // after a failed check; until the next check there is no limit
	stalledAfter    = 5 * time.Second       // if deliver records no event for so long, the limit does not apply
)

// recordLimit limits how many events wait in EVENTS until deliver records them. Events beyond the limit wait in Postgres,
// where callers take turns. The stream has one order for all: there, an event would wait for everything that was published before it.
//
// The limit does not apply while deliver records nothing, because other services read EVENTS, too. Nor does it apply while NATS
// does not return the number of unrecorded events.
type recordLimit struct {
	mu         sync.Mutex
	published  int // since the last check
	reached    bool
	progress   uint64    // bus.Recorded.Progress at the last check
	progressAt time.Time // when progress last changed
	nextCheck  time.Time // the earliest time of the next check
}

// count adds events that are about to be published.
func (l *recordLimit) count(published int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published += published
}

// isReached reports whether further events must wait. It sends one request to NATS for every eventsPerCheck events; while the limit
// is reached, one for each call.
func (l *recordLimit) isReached(ctx context.Context, b *bus.Bus) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.reached && l.published < eventsPerCheck || now.Before(l.nextCheck) {
		return l.reached
	}
	checkCtx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	recorded, err := b.Recorded(checkCtx)
	switch {
	case ctx.Err() != nil: // the call ends
		return l.reached
	case err != nil:
		l.published, l.reached, l.nextCheck = 0, false, now.Add(pauseAfterError)
		return false
	}
	if recorded.Progress != l.progress || l.progressAt.IsZero() {
		l.progress, l.progressAt = recorded.Progress, now
	}
	l.published = 0
	l.reached = recorded.Waiting > maxUnrecorded && now.Sub(l.progressAt) < stalledAfter
	return l.reached
}
