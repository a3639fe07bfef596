// Package save is the event function that saves the messages that a stream has accepted:
//
//	POST /events/save
//
// save receives the messages of each shard in batches, one batch at a time and in the order of the
// stream. It returns 2xx once a batch and the acknowledgements to the senders are committed.
// On a tick it saves accepted messages that are missing in the database, which only a defect can
// cause, and removes from the stream the messages that were saved long ago.
package save

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
)

// Function saves the messages that a stream has accepted.
var Function = fn.EventBatch("save", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) (fn.EventHandler, fn.BatchHandler) {
	s := &saver{admin: env.Admin, messages: env.Messages, env: env}
	return s.event, s.batch
}

type saver struct {
	admin         *admin.Store
	messages      *messages.Store
	env           *fn.Env
	reorders      reorderCounter
	acceptedBytes atomic.Int64 // saved since this process last scheduled a purge
}

func (s *saver) event(ctx context.Context, c *fn.Call, e cloudevents.Event) error {
	if e.Type() == bus.AcceptedType {
		return s.batch(ctx, c, []streamevent.Event{streamevent.FromCloudEvent(e)})
	}
	if s.env.Bus() == nil { // NATS is not configured
		return nil
	}
	err := s.reconcile(ctx, c)
	if errors.Is(err, bus.ErrUnavailable) {
		err = errors.Join(fn.Busy("NATS is unavailable; repeat the same call later"), err)
	}
	return err
}

// batch saves the events in their order. An event that is not an accepted message becomes a dead
// letter, and the others are saved.
func (s *saver) batch(ctx context.Context, c *fn.Call, events []streamevent.Event) error {
	rows := make([]*messages.Submission, 0, len(events))
	for i := range events {
		e := &events[i]
		m, err := e.Message()
		if err != nil {
			if err := s.admin.Bury(ctx, store.DeadLetter{
				Function: "save", EventID: e.ID, EventType: e.Type, Event: string(slices.Concat(e.Data, e.DataBase64)), Reason: err.Error(), Attempts: 1,
			}); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, m)
	}
	return s.save(ctx, c, rows)
}

// save commits the rows and wakes the functions that send them.
func (s *saver) save(ctx context.Context, c *fn.Call, rows []*messages.Submission) error {
	if len(rows) == 0 {
		return nil
	}
	metrics := s.env.Metrics().TwoPhase
	savings, err := s.messages.SaveAccepted(ctx, rows)
	if err != nil {
		metrics.SaveFail.Inc()
		return err
	}
	s.schedulePurge(rows)
	counts := map[messages.Saving]int{}
	var relay, deliver bool
	for i, m := range rows {
		counts[savings[i]]++
		switch savings[i] {
		case messages.SavedNow:
			metrics.SaveLag.Observe(time.Since(m.AcceptedAt))
			s.reorders.count(m, s.env.Config.TwoPhase.Shards, metrics)
		case messages.SavedBefore:
			metrics.DupDB.Inc()
		default:
			metrics.SaveFail.Inc()
			continue
		}
		// For a repeat too: the process that saved the message may have died before it woke the functions.
		deliver = deliver || m.To.Kind == message.URL
		relay = relay || m.To.Kind != message.URL
	}
	if relay {
		s.env.WakeRelayAt(time.Time{})
	}
	if deliver {
		s.env.WakeDeliverAt(time.Time{})
	}
	c.Log("saved", counts[messages.SavedNow], "repeated", counts[messages.SavedBefore], "rejected", counts[messages.SaveRejected]+counts[messages.SavePoisoned])
	return nil
}
