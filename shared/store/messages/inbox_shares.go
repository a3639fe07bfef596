package messages

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
)

const (
	inboxPart    = 4    // a sender may send this part of an inbox within 15 minutes
	inboxPairs   = 8192 // pairs of sender and user that are remembered
	inboxMinutes = 16   // the last 15, and the one that has begun
	countsLast   = time.Minute
)

// inboxShares limits how many messages a sender sends to one user within 15 minutes, so that
// one sender cannot push the messages of others out of an inbox. Messages that this process
// accepts are counted exactly, before they are saved. Above a few messages, the database is
// queried for those of other processes.
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
	underWay int               // of calls that have not returned

	others  int // saved by other processes
	counted time.Time
}

// here returns how many messages this process accepted within the last 15 minutes.
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

// inboxPlace is one message of a pair, counted before it is saved. A nil one is of
// a message that is not counted.
type inboxPlace struct {
	shares *inboxShares
	share  *inboxShare
	ended  bool
}

// admit counts a message as under way, or returns nil where the sender has sent as
// much to the user as it may. release must follow.
func (i *inboxShares) admit(pair inboxPair) *inboxPlace {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	s := i.share(pair, now)
	age := now.Sub(s.counted)
	if age > countsLast {
		s.others = 0
	}
	total := s.here(now) + s.underWay + s.others
	pause := quota.CountEvery
	if total*10 < i.limit {
		pause = quota.CountEverySlow
	}
	if !i.counting && age > pause && total > i.few() {
		i.counting = true
		go i.count(pair, s)
	}
	if total >= i.limit {
		return nil
	}
	s.underWay++
	return &inboxPlace{shares: i, share: s}
}

// share returns that of a pair. Where there are too many pairs it forgets those of
// few messages, or all that have nothing under way: the saved messages are still in
// the database.
func (i *inboxShares) share(pair inboxPair, now time.Time) *inboxShare {
	s := i.of[pair]
	if s != nil {
		return s
	}
	if len(i.of) >= inboxPairs {
		maps.DeleteFunc(i.of, func(_ inboxPair, old *inboxShare) bool { return old.underWay == 0 && old.here(now) <= i.few() })
	}
	if len(i.of) >= inboxPairs {
		maps.DeleteFunc(i.of, func(_ inboxPair, old *inboxShare) bool { return old.underWay == 0 })
	}
	if i.of == nil {
		i.of = map[inboxPair]*inboxShare{}
	}
	s = &inboxShare{}
	i.of[pair] = s
	return s
}

// keep records that the message was saved or accepted.
func (p *inboxPlace) keep() {
	p.end(func(s *inboxShare) {
		s.here(time.Now())
		s.byMinute[s.minute%inboxMinutes]++
	})
}

// release ends the call: a message that was not kept no longer counts.
func (p *inboxPlace) release() { p.end(func(*inboxShare) {}) }

func (p *inboxPlace) end(count func(*inboxShare)) {
	if p == nil {
		return
	}
	p.shares.mu.Lock()
	defer p.shares.mu.Unlock()
	if !p.ended {
		p.ended = true
		p.share.underWay--
		count(p.share)
	}
}

// count queries how many messages of a pair are saved.
func (i *inboxShares) count(pair inboxPair, s *inboxShare) {
	ctx, cancel := context.WithTimeout(context.Background(), quota.CountTimeout)
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

// sentToUserSQL counts what $1 and the other callers of its account sent to the user $2 within 15 minutes, up to $3.
const sentToUserSQL = `
select count(*) from (
    select from messages where kind = 2 and sender in (
        select $1::text union select c.name from callers c join callers a on a.id = c.account_id where a.name::text = $1
    ) and destination = $2 and created_at > now() - interval '15 minutes' limit $3
) m`

// sentToUser is inboxShares.saved.
func (st *Store) sentToUser(ctx context.Context, pair inboxPair) (n int, err error) {
	err = st.db.Hot.QueryRow(ctx, sentToUserSQL, store.Unprepared, pair.sender, pair.user, 2*st.inboxes.limit).Scan(&n)
	return n, err
}
