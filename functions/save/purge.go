package save

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

const purgeRows = 500 // messages that are removed together

// shortWindow limits the deduplication window while the stream is at least half full. Room for new messages
// is more important than the window, because the primary key of the messages detects repeats too.
const shortWindow = 15 * time.Minute

// dedupeWindow returns the deduplication window. It is at most shortWindow while the stream is at least half full, and 0
// while the stream is at least 90% full.
func (s *saver) dedupeWindow(state bus.AcceptState) time.Duration {
	window := s.env.Config.TwoPhase.DedupeWindow
	switch used := float64(state.Bytes) / float64(state.MaxBytes); {
	case state.MaxBytes <= 0 || used < 0.5:
		return window
	case used < 0.9:
		return min(window, shortWindow)
	default:
		return 0
	}
}

// purge removes from the stream the messages that were saved or rejected longer ago than the window, and then their rows
// of accepted_messages. At the end it deletes old rows of messages that the stream does not have (ForgetDelivered).
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

// handleOldest looks at the oldest purgeRows entries of the stream that are older than the window and are still there after
// purge. It saves the messages among them that are not saved, even if the database has their sequence numbers: NATS may have lost
// the end of the stream and given its numbers to newer messages, and an operator may have dismissed a dead letter after its cause
// was repaired. It removes what can never be saved: events that are not messages, which are dead letters, and entries that are not
// events. upTo is the sequence number up to which the consumers have acknowledged everything.
func (s *saver) handleOldest(ctx context.Context, c *fn.Call, upTo uint64, window time.Duration) error {
	oldest, err := s.env.Bus().OldestAccepted(ctx, upTo, window, purgeRows)
	if err != nil {
		return err
	}
	var usable []bus.AcceptedMessage
	var seqs []messages.AcceptedSeq // of usable
	var unusable []bus.StoredMessage
	for _, m := range oldest {
		id, err := acceptedID(m)
		if err != nil {
			unusable = append(unusable, m)
			continue
		}
		usable, seqs = append(usable, *m.Message), append(seqs, messages.AcceptedSeq{ID: id, Seq: int64(m.Seq)})
	}
	return errors.Join(s.saveUnknown(ctx, c, usable, seqs), s.removeUnusable(ctx, unusable))
}

// acceptedID returns the id of an accepted message, or an error if the entry of the stream is not an accepted message.
func acceptedID(m bus.StoredMessage) (task.ID, error) {
	if m.Message == nil {
		return task.ID{}, errors.New("not an event")
	}
	event := streamevent.FromStream(m.Message.Event, m.Seq, m.Message.Fingerprint)
	message, err := event.Message()
	if err != nil {
		return task.ID{}, err
	}
	return message.ID, nil
}

// saveUnknown saves the messages that are no dead letters and whose id and sequence number no row of accepted_messages has. seqs has
// the id and the sequence number of each message.
func (s *saver) saveUnknown(ctx context.Context, c *fn.Call, usable []bus.AcceptedMessage, seqs []messages.AcceptedSeq) error {
	if len(usable) == 0 {
		return nil
	}
	known, err := s.env.Messages.KnownAccepted(ctx, seqs)
	if err != nil {
		return err
	}
	unknown := slices.DeleteFunc(usable, func(m bus.AcceptedMessage) bool { return known[int64(m.Seq)] })
	if unknown, err = withoutDeadLetters(ctx, s.env, unknown); err != nil {
		return err
	}
	return s.saveMissing(ctx, c, unknown)
}

func (s *saver) removeUnusable(ctx context.Context, unusable []bus.StoredMessage) error {
	if len(unusable) == 0 {
		return nil
	}
	s.env.Log.Warn("removing from the stream of accepted messages what can never be saved; the events among it are dead letters", "messages", len(unusable), "first_sequence", unusable[0].Seq)
	return s.env.Bus().RemoveStored(ctx, unusable)
}
