package bus

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// joinInbox adds a follower to an inbox; messages to the inbox wake the follower through wakeUps. For the first follower,
// joinInbox subscribes. The server receives the subscription before any request that the follower sends afterwards
// on this connection.
func (b *Bus) joinInbox(key inboxKey, wakeUps chan struct{}) (*inboxSubscription, error) {
	b.inboxesMu.Lock()
	defer b.inboxesMu.Unlock()
	s := b.inboxes[key]
	if s == nil {
		s = &inboxSubscription{key: key, wakeUps: map[chan struct{}]struct{}{}}
		var err error
		if s.sub, err = key.nc.Subscribe(key.subject, s.wake); err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", key.subject, err)
		}
		b.inboxes[key] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeUps[wakeUps] = struct{}{}
	return s, nil
}

// leaveInbox removes a follower from an inbox, and unsubscribes after the last follower.
func (b *Bus) leaveInbox(s *inboxSubscription, wakeUps chan struct{}) {
	b.inboxesMu.Lock()
	defer b.inboxesMu.Unlock()
	s.mu.Lock()
	delete(s.wakeUps, wakeUps)
	remaining := len(s.wakeUps)
	s.mu.Unlock()
	if remaining > 0 {
		return
	}
	delete(b.inboxes, s.key)
	if err := s.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.log.Warn("cannot unsubscribe", "subject", s.key.subject, "error", err)
	}
}
