package bus

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/nats-io/nats.go"
)

// inboxSubscription is the subscription to one inbox. All followers of the inbox in this process share it:
// NATS sends each message, with its body, once for each subscription, so a user with many subscriptions
// could fill the connection.
type inboxSubscription struct {
	key inboxKey
	sub *nats.Subscription

	mu        sync.Mutex
	followers map[*Follower]struct{}
}

type inboxKey struct {
	nc      *nats.Conn
	subject string
}

// joinInbox adds f to the followers of its inbox. The first follower subscribes. The server receives the
// subscription before any request that f sends afterwards on this connection.
func (b *Bus) joinInbox(f *Follower, nc *nats.Conn) (*inboxSubscription, error) {
	b.inboxesMu.Lock()
	defer b.inboxesMu.Unlock()
	key := inboxKey{nc, f.subject}
	s := b.inboxes[key]
	if s == nil {
		s = &inboxSubscription{key: key, followers: map[*Follower]struct{}{}}
		var err error
		if s.sub, err = nc.Subscribe(key.subject, s.wake); err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", key.subject, err)
		}
		b.inboxes[key] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = struct{}{}
	return s, nil
}

// leaveInbox removes f from the followers of its inbox. The last follower unsubscribes.
func (b *Bus) leaveInbox(f *Follower, s *inboxSubscription) {
	b.inboxesMu.Lock()
	defer b.inboxesMu.Unlock()
	s.mu.Lock()
	delete(s.followers, f)
	remaining := len(s.followers)
	s.mu.Unlock()
	if remaining > 0 {
		return
	}
	delete(b.inboxes, s.key)
	if err := s.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.log.Warn("stop following", "subject", s.key.subject, "error", err)
	}
}

// wake wakes all followers. It never blocks: one pending wake-up for each is enough.
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

// arrived returns how many messages the subscription has received. Use only the difference between two
// results of one subscription.
func (s *inboxSubscription) arrived() int64 {
	delivered, err := s.sub.Delivered()
	waiting, _, pendingErr := s.sub.Pending()
	if err != nil || pendingErr != nil {
		return math.MaxInt64 // the connection is closing
	}
	return delivered + int64(waiting)
}
