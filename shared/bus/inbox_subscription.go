package bus

import (
	"math"
	"sync"

	"github.com/nats-io/nats.go"
)

// inboxSubscription is the subscription to one inbox (the subject of a user). All followers of the inbox in this
// process share the subscription. NATS sends each message, with its body, once for each subscription, so many
// followers of one user could otherwise fill the connection.
type inboxSubscription struct {
	key inboxKey
	sub *nats.Subscription

	mu      sync.Mutex
	wakeUps map[chan struct{}]struct{} // of the followers
}

type inboxKey struct {
	nc      *nats.Conn
	subject string
}

// wake wakes all followers. It never blocks: one pending wake-up for each is enough.
func (s *inboxSubscription) wake(*nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for wakeUps := range s.wakeUps {
		select {
		case wakeUps <- struct{}{}:
		default:
		}
	}
}

// arrived returns how many messages the subscription has received. Use only the difference between two
// results of one subscription. If the number is unknown, the result is so large that findEviction counts the
// stored messages.
func (s *inboxSubscription) arrived() int64 {
	delivered, err := s.sub.Delivered()
	waiting, _, pendingErr := s.sub.Pending()
	if err != nil || pendingErr != nil {
		return math.MaxInt64 // the connection is closing
	}
	return delivered + int64(waiting)
}
