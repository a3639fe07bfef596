package save

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
)

const purgeRows = 500 // messages that are removed together

// shortWindow limits the deduplication window while the stream is at least half full. Room for new messages
// is more important than the window, because the primary key of the messages detects repeats too.
const shortWindow = 15 * time.Minute

// dedupeWindow returns the deduplication window, which is 0 while the stream is at least 90% full.
func (s *saver) dedupeWindow(state bus.AcceptState) time.Duration {
	window := s.env.Config.TwoPhase.DedupeWindow
	switch used := float64(state.Bytes) / float64(max(state.MaxBytes, 1)); {
	case state.MaxBytes <= 0 || used < 0.5:
		return window
	case used < 0.9:
		return min(window, shortWindow)
	default:
		return 0
	}
}

// purgeParts is how many times the stream is purged while as many bytes are saved as the stream can hold.
const purgeParts = 16

// schedulePurge wakes this function each time this process has saved 1/purgeParts of the stream's
// size. The ticks alone are too far apart for a stream that fills within a minute.
func (s *saver) schedulePurge(accepted []*messages.Submission) {
	var bytes int64
	for _, m := range accepted {
		bytes += int64(len(m.Data)) + messages.StreamOverhead
	}
	if s.acceptedBytes.Add(bytes) >= s.env.Config.Bus.Sizes()[messages.StreamAccepted]/purgeParts {
		s.acceptedBytes.Store(0)
		s.env.WakeSaveAt(time.Time{})
	}
}

// purge removes from the stream the messages that were saved longer ago than the window, and then their rows of
// accepted_messages. At the end it deletes the old rows whose message the stream does not have.
func (s *saver) purge(ctx context.Context, window time.Duration) error {
	for {
		saved, err := s.env.Messages.PurgeCandidates(ctx, window, purgeRows)
		if err != nil {
			return err
		}
		if len(saved) == 0 {
			return s.env.Messages.ForgetDelivered(ctx)
		}
		entries := make([]bus.AcceptedEntry, len(saved))
		for i, p := range saved {
			entries[i] = bus.AcceptedEntry{ID: p.ID.String(), Seq: uint64(p.Seq)}
		}
		if err := s.env.Bus().Forget(ctx, entries); err != nil {
			return err
		}
		if err := s.env.Messages.MarkPurged(ctx, saved); err != nil {
			return err
		}
	}
}

// removeUnusable removes entries of the stream that are older than the window and can never be saved. These
// are events that are not messages, which are dead letters, and entries that are not events. upTo is the
// sequence number up to which the consumers have acknowledged everything.
func (s *saver) removeUnusable(ctx context.Context, upTo uint64, window time.Duration) error {
	oldest, err := s.env.Bus().OldestAccepted(ctx, upTo, window, purgeRows)
	if err != nil {
		return err
	}
	unusable := slices.DeleteFunc(oldest, func(m bus.StoredMessage) bool {
		if m.Message == nil {
			return false
		}
		e := streamevent.FromStream(m.Message.Event, m.Seq, m.Message.Fingerprint)
		_, err := e.Message()
		return err == nil
	})
	if len(unusable) == 0 {
		return nil
	}
	s.env.Log.Warn("removing from the stream of accepted messages what cannot be saved; its events are dead letters", "messages", len(unusable), "first_sequence", unusable[0].Seq)
	return s.env.Bus().RemoveStored(ctx, unusable)
}
