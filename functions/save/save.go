// Package save is the event function that saves the messages that a stream has accepted:
//
//	POST /events/save
//
// save receives the messages of each shard in batches, one batch at a time and in the order of the
// stream. It returns 2xx once one transaction has stored a batch, and the acknowledgements that the relay will publish to the senders.
// On a tick or another wake-up, save looks for accepted messages that are missing in the database, and saves them; usually there are none.
// Then save removes from the stream the messages that were saved longer ago than the deduplication window.
package save

import (
	"context"
	"errors"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// Function saves the messages that a stream has accepted.
var Function = fn.EventBatch("save", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) (fn.EventHandler, fn.BatchHandler) {
	s := &saver{env: env, reorders: reorderCounter{shards: map[int]int64{}, senders: map[string]int64{}}}
	return s.event, s.batch
}

func (s *saver) event(ctx context.Context, c *fn.Call, e cloudevents.Event) error {
	if e.Type() == bus.AcceptedType || e.Type() == bus.UnreadableType {
		return s.batch(ctx, c, []streamevent.Event{streamevent.FromCloudEvent(e)})
	}
	if s.env.Bus() == nil { // NATS is not configured
		return nil
	}
	err := s.reconcile(ctx, c)
	if errors.Is(err, bus.ErrUnavailable) {
		err = errors.Join(task.Busy("NATS is unavailable; repeat the same call later"), err)
	}
	return err
}
