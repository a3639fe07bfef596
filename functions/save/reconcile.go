package save

import (
	"context"
	"errors"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
)

const (
	idleTime = 30 * time.Second // see reconcile
	scanSize = 1_000            // sequence numbers that are compared with the database at once; then the progress is stored
)

// reconcile saves messages that the consumers have acknowledged and that are not in the database. If
// nothing was acknowledged for idleTime, it also saves missing messages that are older than idleTime and not
// acknowledged. Then it removes from the stream what was saved longer ago than the deduplication window (purge) or can
// never be saved (handleOldest).
func (s *saver) reconcile(ctx context.Context, c *fn.Call) error {
	state, err := s.env.Bus().AcceptState(ctx)
	if err != nil {
		return err
	}
	checked, err := s.env.Messages.Checked(ctx, state.Created)
	if err != nil {
		return err
	}
	// checked.LastSeq and checked.ConsumedSeq describe the stream as it was checked.Ago ago.
	upTo := state.SavedTo
	if checked.Ago >= idleTime {
		if checked.ConsumedSeq == state.SavedTo {
			upTo = max(upTo, min(checked.LastSeq, state.LastSeq))
		}
		if err := s.env.Messages.MarkScanned(ctx, state.Created, state.LastSeq, state.SavedTo); err != nil {
			return err
		}
	}
	after := checked.Seq
	if after > state.LastSeq { // NATS has lost the end of the stream, or a compromised function wrote this number
		after = 0
	}
	err = eachUnsaved(ctx, s.env, max(after+1, state.FirstSeq), upTo, func(unsaved []bus.AcceptedMessage, scannedTo uint64) error {
		if err := s.saveMissing(ctx, c, unsaved); err != nil {
			return err
		}
		return s.env.Messages.SetChecked(ctx, state.Created, scannedTo, state.LastSeq)
	})
	window := s.dedupeWindow(state)
	return errors.Join(err, s.purge(ctx, window), s.handleOldest(ctx, c, state.SavedTo, window))
}

// eachUnsaved scans the sequence numbers of the stream from first to last in parts, oldest first. For each part
// it calls handle with the messages that are neither saved nor rejected nor dead letters, and with the last sequence
// number of the part.
func eachUnsaved(ctx context.Context, env *fn.Env, first, last uint64, handle func(unsaved []bus.AcceptedMessage, scannedTo uint64) error) error {
	for ; first <= last; first += scanSize {
		scannedTo := min(first+scanSize-1, last)
		missing, err := env.Messages.MissingSequences(ctx, first, scannedTo)
		if err != nil {
			return err
		}
		unsaved, err := env.Bus().AcceptedAt(ctx, missing)
		if err != nil {
			return err
		}
		if unsaved, err = withoutDeadLetters(ctx, env, unsaved); err != nil {
			return err
		}
		if err := handle(unsaved, scannedTo); err != nil {
			return err
		}
	}
	return nil
}
