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
	inboxPart    = 4           // a sender may fill this part of an inbox within 15 minutes: a quarter
	inboxPairs   = 8192        // pairs of sender and user that are remembered
	inboxMinutes = 16          // the last 15 minutes, and the current one
	countMaxAge  = time.Minute // how long a count of the database is used
)

// inboxShares limits how many messages a sender sends to one user within 15 minutes, so that
// one sender cannot push the messages of others out of an inbox. Messages that this process
// accepts are counted exactly, before they are saved. Above a few messages, the database is
// queried for those of other processes.
type inboxShares struct {
	limit      int // messages of a sender to a user; 0 = no limit
	countSaved func(ctx context.Context, pair inboxPair) (int, error)

	mu       sync.Mutex
	of       map[inboxPair]*inboxShare
	counting bool // a query is running; there is one at a time
}

type inboxPair struct{ sender, user string }

type inboxShare struct {
	byMinute [inboxMinutes]int // messages that this process accepted, those of the minute m at m % inboxMinutes
	minute   int64             // the newest in byMinute
	inFlight int               // messages of calls that have not ended

	others  int       // messages that other processes saved
	counted time.Time // when others was counted
}

// accepted returns how many messages this process accepted within the last 15 minutes.
func (s *inboxShare) accepted(now time.Time) (n int) {
	minute := now.Unix() / 60
	for m := max(s.minute, minute-inboxMinutes) + 1; m <= minute; m++ {
		s.byMinute[m%inboxMinutes] = 0
	}
	s.minute = max(s.minute, minute)
	for _, accepted := range s.byMinute {
		n += accepted
	}
	return n
}

// uncounted is the number of messages of a pair up to which the database is not queried.
func (i *inboxShares) uncounted() int { return i.limit / 250 }

// inboxReservation is one message of a pair, counted before it is saved. It is nil for a
// message that is not counted.
type inboxReservation struct {
	shares *inboxShares
	share  *inboxShare
	ended  bool
}

// admit counts a message as in flight. It returns nil if the sender has reached its limit for
// the user. Call release when the call ends.
func (i *inboxShares) admit(pair inboxPair) *inboxReservation {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	s := i.share(pair, now)
	age := now.Sub(s.counted)
	if age > countMaxAge {
		s.others = 0
	}
	total := s.accepted(now) + s.inFlight + s.others
	every := quota.CountEvery
	if total*10 < i.limit {
		every = quota.CountEverySlow
	}
	if !i.counting && age > every && total > i.uncounted() {
		i.counting = true
		go i.count(pair, s)
	}
	if total >= i.limit {
		return nil
	}
	s.inFlight++
	return &inboxReservation{shares: i, share: s}
}

// share returns the counts of a pair. If there are too many pairs, it forgets those with few
// messages, or all pairs with nothing in flight: their saved messages are still in the database.
func (i *inboxShares) share(pair inboxPair, now time.Time) *inboxShare {
	s := i.of[pair]
	if s != nil {
		return s
	}
	if len(i.of) >= inboxPairs {
		maps.DeleteFunc(i.of, func(_ inboxPair, old *inboxShare) bool {
			return old.inFlight == 0 && old.accepted(now) <= i.uncounted()
		})
	}
	if len(i.of) >= inboxPairs {
		maps.DeleteFunc(i.of, func(_ inboxPair, old *inboxShare) bool { return old.inFlight == 0 })
	}
	if i.of == nil {
		i.of = map[inboxPair]*inboxShare{}
	}
	s = &inboxShare{}
	i.of[pair] = s
	return s
}

// keep records that the message was saved or accepted.
func (p *inboxReservation) keep() {
	p.end(func(s *inboxShare) {
		s.accepted(time.Now())
		s.byMinute[s.minute%inboxMinutes]++
	})
}

// release ends the call: a message that was not kept no longer counts.
func (p *inboxReservation) release() { p.end(func(*inboxShare) {}) }

func (p *inboxReservation) end(count func(*inboxShare)) {
	if p == nil {
		return
	}
	p.shares.mu.Lock()
	defer p.shares.mu.Unlock()
	if !p.ended {
		p.ended = true
		p.share.inFlight--
		count(p.share)
	}
}

// count queries how many messages of a pair are saved.
func (i *inboxShares) count(pair inboxPair, s *inboxShare) {
	ctx, cancel := context.WithTimeout(context.Background(), quota.CountTimeout)
	defer cancel()
	saved, err := i.countSaved(ctx, pair)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.counting = false
	if err == nil { // otherwise the last count is kept
		s.counted = time.Now()
		s.others = max(saved-s.accepted(s.counted), 0)
	}
}

// sentToUserSQL counts what $1 and the other callers of its account sent to the user $2 within 15 minutes, up to $3.
const sentToUserSQL = `
select count(*) from (
    select from messages where kind = 2 and sender in (
        select $1::text union select c.name from callers c join callers a on a.id = c.account_id where a.name::text = $1
    ) and destination = $2 and created_at > now() - interval '15 minutes' limit $3
) m`

// sentToUser is inboxShares.countSaved.
func (st *Store) sentToUser(ctx context.Context, pair inboxPair) (n int, err error) {
	err = st.db.Hot.QueryRow(ctx, sentToUserSQL, store.Unprepared, pair.sender, pair.user, 2*st.inboxes.limit).Scan(&n)
	return n, err
}
