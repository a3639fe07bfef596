// Package save is the event function that saves what a stream has accepted (seed
// 004 section 4.3):
//
//	POST /events/save
//
// It gets batches, one at a time of each shard and in the stream's order, and
// answers 2xx once they are committed together with the acknowledgements to their
// senders. A tick has it look for what was accepted and is not saved, which only
// a mistake could bring about, and forget what was saved long ago.
package save

import (
	"context"
	"errors"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Function is this package's line in the catalogue.
var Function = fn.EventBatch("save", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) (fn.EventHandler, fn.BatchHandler) {
	s := &saver{db: env.DB(), env: env}
	return s.one, s.batch
}

const (
	overdue    = 30 * time.Second // an accepted message is looked for that is not saved by then
	walkRows   = 500
	forgetRows = 500
)

type saver struct {
	db    *store.DB
	env   *fn.Env
	order order
}

func (s *saver) one(ctx context.Context, c *fn.Call, e cloudevents.Event) error {
	if e.Type() == fn.AcceptedType {
		return s.batch(ctx, c, []cloudevents.Event{e})
	}
	checked, err := s.db.Checked(ctx)
	if err != nil || s.env.Bus() == nil { // without NATS there is no stream
		return err
	}
	err = s.reconcile(ctx, c, checked)
	if errors.Is(err, bus.ErrAway) {
		err = &task.Error{Code: task.CodeServerBusy, Message: "NATS is away: " + err.Error(), RetryAfter: time.Second}
	}
	return err
}

// batch saves the events in their order. One that is none of ours is a dead
// letter and holds up no other.
func (s *saver) batch(ctx context.Context, c *fn.Call, events []cloudevents.Event) error {
	rows := make([]*store.NewMessage, 0, len(events))
	for _, e := range events {
		m, err := fn.DeliveredMessage(e)
		if err != nil {
			if err := s.db.Bury(ctx, store.DeadLetter{
				Function: "save", EventID: e.ID(), EventType: e.Type(), Event: string(e.Data()), Reason: err.Error(), Attempts: 1,
			}); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, m)
	}
	return s.save(ctx, c, rows)
}

// save commits the rows and has them sent.
func (s *saver) save(ctx context.Context, c *fn.Call, rows []*store.NewMessage) error {
	if len(rows) == 0 {
		return nil
	}
	metrics := s.env.Metrics().TwoPhase
	out, err := s.db.SaveAccepted(ctx, rows)
	if err != nil {
		metrics.SaveFail.Inc()
		return err
	}
	counts := map[store.Saving]int{}
	var relay, deliver bool
	for i, m := range rows {
		counts[out[i]]++
		switch out[i] {
		case store.SavedNow:
			deliver = deliver || m.To.Kind == message.URL
			relay = relay || m.To.Kind != message.URL
			metrics.SaveLag.Observe(time.Since(m.AcceptedAt))
			s.order.note(m, s.env.Config.TwoPhase.Shards, metrics)
		case store.SavedBefore:
			metrics.DupDB.Inc()
		default:
			metrics.SaveFail.Inc()
		}
	}
	if relay {
		s.env.RelayAt(time.Time{})
	}
	if deliver {
		s.env.DeliverAt(time.Time{})
	}
	c.Log("saved", counts[store.SavedNow], "repeated", counts[store.SavedBefore], "rejected", counts[store.SaveRejected]+counts[store.SavePoisoned])
	return nil
}

// reconcile goes through what the stream has accepted after the place up to
// which nothing is missing.
func (s *saver) reconcile(ctx context.Context, c *fn.Call, after uint64) error {
	state, err := s.env.Bus().Accepting(ctx)
	if err != nil {
		return err
	}
	if state.LastSeq < after {
		after = 0 // the stream was made anew
	}
	return errors.Join(s.forget(ctx, s.window(state)), s.findUnsaved(ctx, c, after))
}

// fullWindow is how long a message is kept for the sake of its repeats once the
// stream is half full: taking new ones is more, and the primary key knows repeats
// too.
const fullWindow = 15 * time.Minute

func (s *saver) window(state bus.AcceptState) time.Duration {
	window := s.env.Config.TwoPhase.DedupeWindow
	switch full := float64(state.Bytes) / float64(max(state.MaxBytes, 1)); {
	case state.MaxBytes <= 0 || full < 0.5:
		return window
	case full < 0.9:
		return min(window, fullWindow)
	default:
		return 0
	}
}

// forget takes out of the stream what was saved a window ago.
func (s *saver) forget(ctx context.Context, window time.Duration) error {
	for {
		saved, err := s.db.Forgettable(ctx, window, forgetRows)
		if err != nil || len(saved) == 0 {
			return err
		}
		places := make([]bus.Place, len(saved))
		for i, p := range saved {
			places[i] = bus.Place{ID: p.ID.String(), Seq: uint64(p.Seq)}
		}
		if err := s.env.Bus().Forget(ctx, places); err != nil {
			return err
		}
		if err := s.db.Forgotten(ctx, saved); err != nil {
			return err
		}
	}
}

// findUnsaved saves what was accepted a while ago and is neither saved nor a
// dead letter. It stops before what is too new to judge.
func (s *saver) findUnsaved(ctx context.Context, c *fn.Call, after uint64) error {
	for {
		var page []bus.AcceptedMessage
		young := false
		last, err := s.env.Bus().Walk(ctx, after, walkRows, func(m bus.AcceptedMessage) {
			young = young || time.Since(m.At) < overdue
			if !young {
				page = append(page, m)
			}
		})
		if err != nil {
			return err
		}
		if err := s.settle(ctx, c, page); err != nil {
			return err
		}
		switch {
		case len(page) > 0:
			last = page[len(page)-1].Seq
		case young || last == after:
			return nil
		}
		if err := s.db.SetChecked(ctx, last); err != nil {
			return err
		}
		if after = last; young {
			return nil
		}
	}
}

// settle saves those of a page that are missing.
func (s *saver) settle(ctx context.Context, c *fn.Call, page []bus.AcceptedMessage) error {
	found := map[task.ID]*store.NewMessage{}
	var ids []task.ID
	for _, a := range page {
		m, err := fn.AcceptedMessage(a.Event, a.Seq, a.Fingerprint)
		if err != nil {
			continue // the trigger has posted it, and it is a dead letter
		}
		found[m.ID] = m
		ids = append(ids, m.ID)
	}
	missing, err := s.db.Unsaved(ctx, ids)
	if err != nil || len(missing) == 0 {
		return err
	}
	s.env.Log.Warn("accepted messages were not saved: saving them now", "messages", len(missing))
	rows := make([]*store.NewMessage, len(missing))
	for i, id := range missing {
		rows[i] = found[id]
	}
	return s.save(ctx, c, rows)
}
