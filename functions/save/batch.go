package save

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
)

// batch saves the accepted messages among the events, in their order. Any other event becomes a dead letter, except one of
// bus.UnreadableType, which is ignored.
func (s *saver) batch(ctx context.Context, c *fn.Call, events []streamevent.Event) error {
	accepted := make([]*messages.Submission, 0, len(events))
	var dead []store.DeadLetter
	for i := range events {
		e := &events[i]
		m, err := e.Message()
		switch {
		case err == nil:
			accepted = append(accepted, m)
		case e.Type != bus.UnreadableType:
			dead = append(dead, store.DeadLetter{
				Function: "save", EventID: e.ID, EventType: e.Type, Event: string(slices.Concat(e.Data, e.DataBase64)), Reason: err.Error(), Attempts: 1,
			})
		}
	}
	if len(dead) > 0 {
		if err := s.env.Admin.AddDeadLetters(ctx, dead...); err != nil {
			return err
		}
	}
	return s.save(ctx, c, accepted)
}

// save commits the messages and wakes the functions that send them.
func (s *saver) save(ctx context.Context, c *fn.Call, accepted []*messages.Submission) error {
	if len(accepted) == 0 {
		return nil
	}
	metrics := s.env.Metrics().TwoPhase
	savings, err := s.env.Messages.SaveAccepted(ctx, accepted)
	if err != nil {
		metrics.SaveFail.Inc()
		return err
	}
	s.schedulePurge(accepted)
	counts := map[messages.Saving]int{}
	var relay, deliver bool
	for i, m := range accepted {
		counts[savings[i]]++
		switch savings[i] {
		case messages.SavedNow:
			metrics.SaveLag.Observe(time.Since(m.AcceptedAt))
			s.reorders.count(m, s.env.Config.TwoPhase.Shards, metrics)
		case messages.SavedBefore:
			metrics.DupDB.Inc()
		default:
			continue
		}
		// A repeat wakes the functions too: the process that saved the message may have died before it woke the functions.
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

// purgeParts is how many times the stream is purged while one process saves as many bytes as the stream can hold.
const purgeParts = 16

// schedulePurge wakes this function each time this process has saved 1/purgeParts of the stream's
// size. The ticks alone are too far apart for a stream that fills within a minute.
func (s *saver) schedulePurge(accepted []*messages.Submission) {
	var bytes int64
	for _, m := range accepted {
		bytes += int64(len(m.Data)) + messages.StreamOverhead
	}
	if s.unpurgedBytes.Add(bytes) >= s.env.Config.Bus.Sizes()[messages.StreamAccepted]/purgeParts {
		s.unpurgedBytes.Store(0)
		s.env.WakeSaveAt(time.Time{})
	}
}
