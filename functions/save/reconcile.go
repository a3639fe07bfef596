package save

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
)

const (
	standstill  = 30 * time.Second // nothing was taken from the stream for so long
	checkPlaces = 10_000           // of the stream, compared with what is saved at a time
	saveRows    = 500
	forgetRows  = 500
)

// reconcile compares what this function has answered for with what is saved,
// and with all that the stream had a while ago when it has answered for nothing
// since.
func (s *saver) reconcile(ctx context.Context, c *fn.Call) error {
	state, err := s.env.Bus().AcceptState(ctx)
	if err != nil {
		return err
	}
	checked, err := s.db.Checked(ctx, state.Created)
	if err != nil {
		return err
	}
	upTo := state.SavedTo
	if checked.Ago >= standstill {
		if checked.Taken == state.SavedTo {
			upTo = max(upTo, checked.Last)
		}
		if err := s.db.MarkScanned(ctx, state.Created, state.LastSeq, state.SavedTo); err != nil {
			return err
		}
	}
	err = unsaved(ctx, s.env, checked.Place, upTo, state, func(found []bus.AcceptedMessage, last uint64) error {
		if err := s.saveMissing(ctx, c, found); err != nil {
			return err
		}
		return s.db.SetChecked(ctx, state.Created, last)
	})
	return errors.Join(err, s.forget(ctx, s.window(state)))
}

// unsaved calls each with what is neither saved nor a dead letter of the stream,
// after one place and up to another, part by part, oldest first, and with the
// place where the part ends.
func unsaved(ctx context.Context, env *fn.Env, after, upTo uint64, state bus.AcceptState, each func(found []bus.AcceptedMessage, last uint64) error) error {
	for first := max(after+1, state.FirstSeq); first <= upTo; first += checkPlaces {
		last := min(first+checkPlaces-1, upTo)
		places, err := env.DB().MissingSequences(ctx, first, last)
		if err != nil {
			return err
		}
		found, err := env.Bus().AcceptedAt(ctx, places)
		if err != nil {
			return err
		}
		if found, err = withoutBuried(ctx, env, found); err != nil {
			return err
		}
		if err := each(found, last); err != nil {
			return err
		}
	}
	return nil
}

func withoutBuried(ctx context.Context, env *fn.Env, found []bus.AcceptedMessage) ([]bus.AcceptedMessage, error) {
	if len(found) == 0 {
		return nil, nil
	}
	ids := make([]string, len(found))
	for i, a := range found {
		ids[i] = a.Event.ID()
	}
	buried, err := env.DB().Buried(ctx, ids)
	return slices.DeleteFunc(found, func(a bus.AcceptedMessage) bool { return slices.Contains(buried, a.Event.ID()) }), err
}

// saveMissing saves what was taken from the stream and is not saved, which only
// a mistake brings about.
func (s *saver) saveMissing(ctx context.Context, c *fn.Call, found []bus.AcceptedMessage) error {
	if len(found) > 0 {
		s.env.Log.Warn("accepted messages were not saved: saving them now", "messages", len(found))
	}
	for part := range slices.Chunk(found, saveRows) {
		events := make([]fn.StreamEvent, len(part))
		for i, a := range part {
			events[i] = fn.AcceptedStreamEvent(a.Event, a.Seq, a.Fingerprint)
		}
		if err := s.batch(ctx, c, events); err != nil {
			return err
		}
	}
	return nil
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

// forgetParts is of how many parts of the stream each has a look follow: the look
// after the last part but one finds it nearly full.
const forgetParts = 16

// forgetInTime wakes this function whenever the batches saved here have filled a
// part of the stream: its ticks are too far apart for one that is filled within a
// minute.
func (s *saver) forgetInTime(rows []*store.NewMessage) {
	var bytes int64
	for _, m := range rows {
		bytes += int64(len(m.Data)) + store.StreamOverhead
	}
	part := s.env.Config.Bus.Sizes()[store.StreamAccepted] / forgetParts
	if s.taken.Add(bytes) >= part {
		s.taken.Store(0)
		s.env.WakeSaveAt(time.Time{})
	}
}

// forget takes out of the stream what was saved a window ago. What is delivered
// before it is saved is so within a minute of being accepted, or by the relay.
func (s *saver) forget(ctx context.Context, window time.Duration) error {
	for {
		saved, err := s.db.PurgeCandidates(ctx, window, forgetRows)
		if err != nil {
			return err
		}
		if len(saved) == 0 {
			return s.db.ForgetDelivered(ctx)
		}
		places := make([]bus.AcceptedEntry, len(saved))
		for i, p := range saved {
			places[i] = bus.AcceptedEntry{ID: p.ID.String(), Seq: uint64(p.Seq)}
		}
		if err := s.env.Bus().Forget(ctx, places); err != nil {
			return err
		}
		if err := s.db.MarkPurged(ctx, saved); err != nil {
			return err
		}
	}
}
