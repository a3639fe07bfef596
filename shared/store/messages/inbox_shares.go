package messages

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	inboxPart     = 4           // a sender may fill a quarter of an inbox within 15 minutes
	inboxPairs    = 8192        // pairs of sender and user in memory
	inboxMinutes  = 16          // the last 15 minutes, and the current one
	countMaxAge   = time.Minute // how long a count of the database is used
	burstPart     = 16          // a process accepts a sixteenth of the limit in a second, for save to keep up
	smallestBurst = 64
)

// inboxShares limits how many messages a sender sends to one user within 15 minutes, so that one sender
// cannot push the messages of others out of an inbox. The messages of this process are counted exactly, before
// they are saved. For a pair of sender and user with more than a few messages (see uncounted), the database is queried
// for the messages of other processes. It does not have messages that were accepted and are not saved yet, so each process
// accepts only some of them in a second (see burst).
type inboxShares struct {
	limit     int // messages of a sender to a user; 0 = no limit
	countSent func(ctx context.Context, pair inboxPair) (int, error)

	mu       sync.Mutex
	byPair   map[inboxPair]*inboxShare
	counting bool // a query is running; only one runs at a time, for all pairs
}

type inboxPair struct{ sender, user string }

type inboxShare struct {
	byMinute [inboxMinutes]int // messages that this process saved or a stream accepted; minute m is at m % inboxMinutes
	minute   int64             // the newest minute in byMinute
	inFlight int               // messages of calls that have not ended
	second   int64             // when a message was last admitted to be accepted, as Unix time
	inSecond int               // how many such messages were admitted in this second

	others  int       // messages of other processes, as countSent counts them
	counted time.Time // when others was counted
}

// countRecent clears the minutes in byMinute that are too old, and returns the number of messages in byMinute.
func (s *inboxShare) countRecent(now time.Time) (n int) {
	minute := now.Unix() / 60
	for m := max(s.minute, minute-inboxMinutes) + 1; m <= minute; m++ {
		s.byMinute[m%inboxMinutes] = 0
	}
	s.minute = max(s.minute, minute)
	for _, messages := range s.byMinute {
		n += messages
	}
	return n
}

// uncounted returns the number of messages of a pair up to which the database is not queried.
func (i *inboxShares) uncounted() int { return i.limit / 250 }

// inboxReservation is one message of a pair, counted before it is saved; nil for a message without a limit.
type inboxReservation struct {
	shares *inboxShares
	share  *inboxShare
	ended  bool
}

// burst returns how many messages of a pair this process accepts in a second before they are saved.
func (i *inboxShares) burst() int { return max(smallestBurst, i.limit/burstPart) }

// admit counts a message as in flight until keep or release is called. accepted says that the message will be accepted before
// it is saved. r is nil if the sender has reached its limit for the user or (burst) its limit of accepted messages in this second.
func (i *inboxShares) admit(pair inboxPair, accepted bool) (r *inboxReservation, burst bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	s := i.share(pair, now)
	age := now.Sub(s.counted)
	if age > countMaxAge {
		s.others = 0
	}
	total := s.countRecent(now) + s.inFlight + s.others
	every := quota.CountEvery
	if total*10 < i.limit {
		every = quota.CountEverySlow
	}
	if !i.counting && age > every && total > i.uncounted() {
		i.counting = true
		go i.count(pair, s)
	}
	if total >= i.limit {
		return nil, false
	}
	if accepted {
		if second := now.Unix(); second != s.second {
			s.second, s.inSecond = second, 0
		}
		if s.inSecond >= i.burst() {
			return nil, true
		}
		s.inSecond++
	}
	s.inFlight++
	return &inboxReservation{shares: i, share: s}, false
}

// refuse returns the refusal of a message of this sender that was not admitted.
func (i *inboxShares) refuse(sender string, burst bool) *task.Error {
	refusal := quota.Refuse(shareRetry, fmt.Sprintf("%s has sent %d messages to this user within the last 15 minutes, a quarter of what an inbox holds", sender, i.limit))
	again := "accepts messages of this sender again when the earlier ones are older than 15 minutes"
	if burst {
		refusal = quota.Refuse(time.Second, fmt.Sprintf("%s has sent %d messages with ack accepted to this user within a second", sender, i.burst()))
		again = "accepts messages of this sender again in the next second, and at any time with ack saved"
	}
	refusal.Fields = []task.Field{{Name: "to", Message: again}}
	return refusal
}

// share returns the counts of a pair. If there are too many pairs, it removes pairs without messages in flight: first
// those with few messages and, if that is not enough, all. The database still has their messages, or counts of them.
func (i *inboxShares) share(pair inboxPair, now time.Time) *inboxShare {
	if s := i.byPair[pair]; s != nil {
		return s
	}
	for _, atMost := range []int{i.uncounted(), i.limit} {
		if len(i.byPair) >= inboxPairs {
			maps.DeleteFunc(i.byPair, func(_ inboxPair, s *inboxShare) bool { return s.inFlight == 0 && s.countRecent(now) <= atMost })
		}
	}
	if i.byPair == nil {
		i.byPair = map[inboxPair]*inboxShare{}
	}
	s := &inboxShare{}
	i.byPair[pair] = s
	return s
}

// keep counts the message as saved or accepted.
func (r *inboxReservation) keep() { r.end(1) }

// release removes the message from the counts, unless keep was called before.
func (r *inboxReservation) release() { r.end(0) }

func (r *inboxReservation) end(saved int) {
	if r == nil {
		return
	}
	r.shares.mu.Lock()
	defer r.shares.mu.Unlock()
	if !r.ended {
		r.ended = true
		r.share.inFlight--
		r.share.countRecent(time.Now()) // sets minute
		r.share.byMinute[r.share.minute%inboxMinutes] += saved
	}
}

// count queries how many messages of a pair countSent finds, and sets others.
func (i *inboxShares) count(pair inboxPair, s *inboxShare) {
	ctx, cancel := context.WithTimeout(context.Background(), quota.CountTimeout)
	defer cancel()
	sent, err := i.countSent(ctx, pair)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.counting = false
	if err == nil { // otherwise the last count is kept
		s.counted = time.Now()
		s.others = max(sent-s.countRecent(s.counted), 0)
	}
}
