package store

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	inboxPart    = 4    // a sender may send this part of an inbox within 15 minutes
	inboxPairs   = 8192 // pairs of sender and user that are remembered
	inboxMinutes = 16   // the last 15, and the one that has begun
	countsLast   = time.Minute
)

// inboxShares bounds how many messages a sender sends to one user within 15 minutes,
// so that one sender cannot push the messages of others out of an inbox. What this
// process takes in is counted exactly. Where that is more than a few, the database
// is asked what other processes saved.
type inboxShares struct {
	limit int // messages of a sender to a user; 0 = no limit
	saved func(ctx context.Context, pair inboxPair) (int, error)

	mu       sync.Mutex
	of       map[inboxPair]*inboxShare
	counting bool // one pair at a time
}

type inboxPair struct{ sender, user string }

type inboxShare struct {
	byMinute [inboxMinutes]int // taken in here, the minute m at m % inboxMinutes
	minute   int64             // the newest in byMinute

	others  int // saved by other processes
	counted time.Time
}

// here is what this process took in of the last 15 minutes.
func (s *inboxShare) here(now time.Time) (n int) {
	minute := now.Unix() / 60
	for m := max(s.minute, minute-inboxMinutes) + 1; m <= minute; m++ {
		s.byMinute[m%inboxMinutes] = 0
	}
	s.minute = max(s.minute, minute)
	for _, taken := range s.byMinute {
		n += taken
	}
	return n
}

// few is up to how many messages of a pair the database is not queried.
func (i *inboxShares) few() int { return i.limit / 250 }

// exceeded reports whether the sender has sent as much to the user as it may.
func (i *inboxShares) exceeded(pair inboxPair) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.of[pair]
	if s == nil {
		return false
	}
	now := time.Now()
	here, age := s.here(now), now.Sub(s.counted)
	if age > countsLast {
		s.others = 0
	}
	pause := countEvery
	if (here+s.others)*10 < i.limit {
		pause = countEverySlow
	}
	if !i.counting && age > pause && here+s.others > i.few() {
		i.counting = true
		go i.count(pair, s)
	}
	return here+s.others >= i.limit
}

// count asks what is saved of a pair.
func (i *inboxShares) count(pair inboxPair, s *inboxShare) {
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	saved, err := i.saved(ctx, pair)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.counting = false
	if err == nil { // else what was known stands
		s.counted = time.Now()
		s.others = max(saved-s.here(s.counted), 0)
	}
}

// add counts a message that was saved or accepted. Where there are too many pairs it
// forgets those of few messages, or all: the saved messages are still in the database.
func (i *inboxShares) add(pair inboxPair) {
	if i.limit == 0 {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	s := i.of[pair]
	if s == nil {
		if len(i.of) >= inboxPairs {
			maps.DeleteFunc(i.of, func(_ inboxPair, old *inboxShare) bool { return old.here(now) <= i.few() })
		}
		if i.of == nil || len(i.of) >= inboxPairs {
			i.of = map[inboxPair]*inboxShare{}
		}
		s = &inboxShare{}
		i.of[pair] = s
	}
	s.here(now)
	s.byMinute[s.minute%inboxMinutes]++
}

// sentToUserSQL counts what $1 sent to the user $2 within 15 minutes, up to $3.
const sentToUserSQL = `
select count(*) from (
    select from messages where kind = 2 and sender = $1 and destination = $2 and created_at > now() - interval '15 minutes' limit $3
) m`

// sentToUser is inboxShares.saved.
func (db *DB) sentToUser(ctx context.Context, pair inboxPair) (n int, err error) {
	err = db.hot.QueryRow(ctx, sentToUserSQL, unprepared, pair.sender, pair.user, 2*db.inboxes.limit).Scan(&n)
	return n, err
}
