package bus

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/nats-io/nats.go"
)

// inboxSubscription is the subscription to one inbox that all its followers in this process share.
// NATS sends a message once for each subscription, with its body, so one for each follower would let a
// user with many streams fill the connection.
type inboxSubscription struct {
	on  inboxOn
	sub *nats.Subscription

	mu        sync.Mutex
	followers map[*Follower]struct{}
}

// inboxOn is an inbox, by its subject, on one client connection.
type inboxOn struct {
	nc      *nats.Conn
	subject string
}

// joinInbox adds f to the followers of its inbox. The first one subscribes. When it returns, the
// subscription was sent before whatever f sends next on this connection.
func (b *Bus) joinInbox(f *Follower, nc *nats.Conn) (*inboxSubscription, error) {
	b.inboxesMu.Lock()
	defer b.inboxesMu.Unlock()
	on := inboxOn{nc, f.subject}
	s := b.inboxes[on]
	if s == nil {
		s = &inboxSubscription{on: on, followers: map[*Follower]struct{}{}}
		var err error
		if s.sub, err = nc.Subscribe(on.subject, s.wake); err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", on.subject, err)
		}
		b.inboxes[on] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = struct{}{}
	return s, nil
}

// leaveInbox removes f from the followers of its inbox. The last one unsubscribes.
func (b *Bus) leaveInbox(f *Follower, s *inboxSubscription) {
	b.inboxesMu.Lock()
	defer b.inboxesMu.Unlock()
	s.mu.Lock()
	delete(s.followers, f)
	left := len(s.followers)
	s.mu.Unlock()
	if left > 0 {
		return
	}
	delete(b.inboxes, s.on)
	if err := s.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.log.Warn("stop following", "subject", s.on.subject, "error", err)
	}
}

// wake wakes all followers. It never blocks: one pending wake-up of each is enough.
func (s *inboxSubscription) wake(*nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		select {
		case f.wakeUps <- struct{}{}:
		default:
		}
	}
}

// arrived returns how many messages the subscription has received. Only the difference between two
// results of one subscription has a meaning.
func (s *inboxSubscription) arrived() int64 {
	delivered, err := s.sub.Delivered()
	waiting, _, also := s.sub.Pending()
	if err != nil || also != nil {
		return math.MaxInt64 // the connection is closing
	}
	return delivered + int64(waiting)
}
