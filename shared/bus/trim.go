package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How long EVENTS keeps a recorded event for other subscribers.
const (
	eventsKept     = time.Hour
	eventsKeptHalf = 15 * time.Minute // once the stream is half full
	eventsFull     = 0.75             // above this part none is kept: one batch of relay may fill a tenth of the stream
)

// TrimEvents removes recorded, old enough events from EVENTS, which refuses events when it is full. full
// means that the stream has refused an event. Then, or if more than three quarters are used, TrimEvents
// removes every recorded event, so that one caller's flood does not delay the webhooks of others.
// Duplicates of removed events are still detected: by NATS until it restarts, and by the record.
// Unrecorded events always stay.
func (b *Bus) TrimEvents(ctx context.Context, full bool) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	conn, stream, err := b.stream(ctx, StreamEvents)
	if err != nil || stream == nil {
		return 0, err
	}
	recorded, err := conn.recordedTo(ctx)
	if err != nil || recorded == 0 {
		return 0, err
	}
	info := stream.CachedInfo()
	recorded = min(recorded, info.State.LastSeq)
	used := fillRatio(info)
	switch {
	case full || used > eventsFull:
		return purgeTo(ctx, stream, recorded)
	case used > 0.5:
		return purgeOlderThan(ctx, stream, recorded, b.cfg.ago(eventsKeptHalf))
	}
	return purgeOlderThan(ctx, stream, recorded, b.cfg.ago(eventsKept))
}

// purgeOlderThan removes messages up to last that are older than at. It returns their approximate number.
func purgeOlderThan(ctx context.Context, stream jetstream.Stream, last uint64, at time.Time) (removed int, err error) {
	old, err := lastOlderThan(ctx, stream, stream.CachedInfo().State.FirstSeq, last, at)
	if err != nil {
		return 0, err
	}
	return purgeTo(ctx, stream, old)
}

// purgeTo removes all messages up to last. It returns their approximate number.
func purgeTo(ctx context.Context, stream jetstream.Stream, last uint64) (removed int, err error) {
	first := stream.CachedInfo().State.FirstSeq
	if last < first {
		return 0, nil
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(last+1)); err != nil {
		return 0, unavailable(err)
	}
	return int(last - first + 1), nil
}

// stream looks up a stream; nil if there is none.
func (b *Bus) stream(ctx context.Context, name string) (*Connection, jetstream.Stream, error) {
	conn, err := b.connection(ctx)
	if err != nil {
		return nil, nil, unavailable(err)
	}
	stream, err := conn.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return conn, nil, nil
	}
	if err != nil {
		return nil, nil, unavailable(err)
	}
	return conn, stream, nil
}

// bytesUsed returns the used part of a stream's bytes, 0 to 1; 0 without a limit.
func bytesUsed(info *jetstream.StreamInfo) float64 {
	if limit := info.Config.MaxBytes; limit > 0 {
		return float64(info.State.Bytes) / float64(limit)
	}
	return 0
}

// fillRatio returns the used part of a stream, 0 to 1, by bytes or messages, whichever is larger; 0
// without limits.
func fillRatio(info *jetstream.StreamInfo) float64 {
	used := bytesUsed(info)
	if limit := info.Config.MaxMsgs; limit > 0 {
		used = max(used, float64(info.State.Msgs)/float64(limit))
	}
	return used
}

// recordedTo returns the sequence number up to which all events are recorded; 0 if there is no RecordDurable.
func (conn *Connection) recordedTo(ctx context.Context) (uint64, error) {
	consumer, err := conn.js.Consumer(ctx, StreamEvents, RecordDurable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, unavailable(err)
	}
	return consumer.CachedInfo().AckFloor.Stream, nil
}

// lastOlderThan returns the last sequence number from first to last whose message is older than at; 0
// if there is none. Missing messages count as old.
func lastOlderThan(ctx context.Context, stream jetstream.Stream, first, last uint64, at time.Time) (uint64, error) {
	var old uint64
	for first <= last && last > 0 {
		middle := first + (last-first)/2
		m, err := stream.GetMsg(ctx, middle)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && m.Time.Before(at):
			old, first = middle, middle+1
		case err != nil:
			return 0, unavailable(err)
		default:
			last = middle - 1
		}
	}
	return old, nil
}
