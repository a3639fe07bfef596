package save

import (
	"context"
	"slices"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/streamevent"
)

const saveRows = 500 // messages that are saved together

// withoutDeadLetters returns the unsaved messages that are not dead letters.
func withoutDeadLetters(ctx context.Context, env *fn.Env, unsaved []bus.AcceptedMessage) ([]bus.AcceptedMessage, error) {
	if len(unsaved) == 0 {
		return nil, nil
	}
	ids := make([]string, len(unsaved))
	for i, m := range unsaved {
		ids[i] = m.Event.ID()
	}
	dead, err := env.Messages.DeadAccepted(ctx, ids)
	return slices.DeleteFunc(unsaved, func(m bus.AcceptedMessage) bool { return slices.Contains(dead, m.Event.ID()) }), err
}

// saveMissing saves messages that should have been saved earlier. There are such messages only after a defect, after a loss of
// data in NATS, or after an operator has dismissed their dead letters.
func (s *saver) saveMissing(ctx context.Context, c *fn.Call, unsaved []bus.AcceptedMessage) error {
	if len(unsaved) > 0 {
		s.env.Log.Warn("accepted messages were not saved: saving them now", "messages", len(unsaved))
	}
	for part := range slices.Chunk(unsaved, saveRows) {
		events := make([]streamevent.Event, len(part))
		for i, m := range part {
			events[i] = streamevent.FromStream(m.Event, m.Seq, m.Fingerprint)
		}
		if err := s.batch(ctx, c, events); err != nil {
			return err
		}
	}
	return nil
}
