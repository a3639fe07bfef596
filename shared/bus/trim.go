package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How long EVENTS keeps an event that deliver has recorded, for whoever else
// subscribes: at least the window in which a repeat is recognised.
const (
	eventsKept     = time.Hour
	eventsKeptFull = 15 * time.Minute // once the stream is half full
)

// TrimEvents removes from EVENTS what was recorded and is old enough: a stream
// that refuses when it is full must be emptied by somebody. Events that are not
// recorded yet stay, however old.
func (b *Bus) TrimEvents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	l, err := b.reach(ctx)
	if err != nil {
		return away(err)
	}
	stream, err := l.js.Stream(ctx, StreamEvents)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return away(err)
	}
	recorded, err := l.recorded(ctx)
	if err != nil || recorded == 0 {
		return err
	}
	info := stream.CachedInfo()
	kept := eventsKept
	if 2*info.State.Bytes > uint64(max(info.Config.MaxBytes, 0)) {
		kept = eventsKeptFull
	}
	old, err := olderThan(ctx, stream, info.State.FirstSeq, min(recorded, info.State.LastSeq), time.Now().Add(-kept))
	if err != nil || old == 0 {
		return err
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(old+1)); err != nil {
		return away(err)
	}
	return nil
}

// recorded is the place up to which everything was taken by the route that
// records events; 0 when there is none.
func (l *link) recorded(ctx context.Context) (uint64, error) {
	consumer, err := l.js.Consumer(ctx, StreamEvents, recordRoute)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, away(err)
	}
	return consumer.CachedInfo().AckFloor.Stream, nil
}

// olderThan finds the last of the places first to last whose message is older
// than at; 0 when none is. Places that are empty count as old.
func olderThan(ctx context.Context, stream jetstream.Stream, first, last uint64, at time.Time) (uint64, error) {
	var old uint64
	for first <= last && last > 0 {
		middle := first + (last-first)/2
		m, err := stream.GetMsg(ctx, middle)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && m.Time.Before(at):
			old, first = middle, middle+1
		case err != nil:
			return 0, away(err)
		default:
			last = middle - 1
		}
	}
	return old, nil
}
