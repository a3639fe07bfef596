// Package loglimit limits how often a repeated event is logged.
package loglimit

import (
	"cmp"
	"maps"
	"sync"
	"time"
)

// Limit allows one log line in each interval, and counts the events that are not logged. The zero value
// has an interval of a minute. It is safe for concurrent use.
type Limit struct {
	Every time.Duration // the interval; 0 = time.Minute. It must not change after the first Next

	mu       sync.Mutex
	unlogged uint64
	loggedAt time.Time
}

// Next counts an event. It returns whether to log the event, and if so how many events were not logged
// since the last logged one.
func (l *Limit) Next() (unlogged uint64, log bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.loggedAt) < l.interval() {
		l.unlogged++
		return 0, false
	}
	unlogged = l.unlogged
	l.unlogged, l.loggedAt = 0, time.Now()
	return unlogged, true
}

// maxKeys limits the memory of a ByKey to some 100 kB, in addition to that of the keys.
const maxKeys = 1024

// ByKey has a Limit for each key, with an interval of a minute. Keys may come from clients, so their
// number is limited: if there are maxKeys, new keys share one Limit until older keys were not logged for a minute. The
// zero value is ready to use. It is safe for concurrent use.
type ByKey[K comparable] struct {
	mu        sync.Mutex
	limits    map[K]*Limit
	others    Limit
	cleanedAt time.Time
}

// Next is Limit.Next for a key.
func (b *ByKey[K]) Next(key K) (unlogged uint64, log bool) { return b.limit(key).Next() }

func (b *ByKey[K]) limit(key K) *Limit {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.limits[key]; l != nil {
		return l
	}
	if len(b.limits) >= maxKeys && time.Since(b.cleanedAt) >= time.Second { // at most once a second, because a flood may have many new keys
		maps.DeleteFunc(b.limits, func(_ K, l *Limit) bool { return l.wouldLog() })
		b.cleanedAt = time.Now()
	}
	if len(b.limits) >= maxKeys {
		return &b.others
	}
	if b.limits == nil {
		b.limits = map[K]*Limit{}
	}
	l := &Limit{}
	b.limits[key] = l
	return l
}

// wouldLog reports whether the next event would be logged.
func (l *Limit) wouldLog() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.loggedAt) >= l.interval()
}

func (l *Limit) interval() time.Duration { return cmp.Or(l.Every, time.Minute) }
