package bus

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	nearlyFull  = 0.9             // as a fillRatio
	mostlyFull  = 0.75            // as a fillRatio; above it, a stream may have no room for a batch, or for a large message
	trimTimeout = 8 * time.Second // of the trim of one stream
	trimMargin  = 2 * time.Second // in the last 2 s of trimTimeout, a trim begins no deletion of a single message
	trimBudget  = 4 * time.Second // after this time, TrimMessages handles no further page of headers
	trimDeletes = 32              // parallel deletions
)

// How long EVENTS keeps an event that deliver has recorded in Postgres, unless the stream is more than three quarters full.
// Until then, consumers other than that of deliver can read the event.
const (
	eventsKept         = time.Hour
	eventsKeptHalfFull = 15 * time.Minute // while more than half of the stream's size is used
)

// TrimEvents removes old recorded events from EVENTS. If more than three quarters of the stream are used, TrimEvents
// removes every recorded event, so that one caller's flood does not delay the webhooks of other callers.
// Unrecorded events stay. If a removed event is published again, it is not recorded twice: NATS detects the
// duplicate for ten minutes, or until NATS restarts, and the function deliver always detects the duplicate.
// removed may be too large: it counts sequence numbers whose message was already gone.
func (b *Bus) TrimEvents(ctx context.Context) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	conn, stream, err := b.stream(ctx, StreamEvents)
	if err != nil || stream == nil {
		return 0, err
	}
	recorded, err := conn.recordedTo(ctx, stream)
	if err != nil || recorded == 0 {
		return 0, err
	}
	info := stream.CachedInfo()
	recorded = min(recorded, info.State.LastSeq)
	used := fillRatio(info)
	first, last := info.State.FirstSeq, recorded
	if used <= mostlyFull {
		kept := eventsKept
		if used > 0.5 {
			kept = eventsKeptHalfFull
		}
		if last, err = lastOlderThan(ctx, stream, first, recorded, b.cfg.ago(kept)); err != nil {
			return 0, err
		}
	}
	if last < first {
		return 0, nil
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(last+1)); err != nil {
		return 0, unavailable(err)
	}
	return int(last - first + 1), nil
}

// hasNoRoom reports whether a stream is nearly full, or is mostly full and has refused a message. A stream that is not
// even mostly full has refused messages for another reason, and needs no room.
func hasNoRoom(info *jetstream.StreamInfo, refused bool) bool {
	used := fillRatio(info)
	return used > nearlyFull || refused && used > mostlyFull
}

// recordedTo returns the sequence number up to which all events are recorded. The result is 0 if the consumer RecordDurable is
// missing, or has received messages that the stream has lost (isAhead), until the trigger creates the consumer again.
func (conn *Connection) recordedTo(ctx context.Context, events jetstream.Stream) (uint64, error) {
	consumer, err := conn.recordConsumer(ctx)
	if err != nil || consumer == nil {
		return 0, err
	}
	info, err := events.Info(ctx)
	if err != nil {
		return 0, unavailable(err)
	}
	if isAhead(consumer, info) {
		return 0, nil
	}
	return consumer.AckFloor.Stream, nil
}

// recordConsumer returns the state of the consumer RecordDurable; nil if it is missing.
func (conn *Connection) recordConsumer(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	consumer, err := conn.js.Consumer(ctx, StreamEvents, RecordDurable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return consumer.CachedInfo(), nil
}

// Recorded is the progress of the function deliver in recording the events of EVENTS.
type Recorded struct {
	Progress uint64 // grows when the consumer receives or acknowledges events
	Waiting  int    // number of events that are not recorded
}

// Recorded returns this progress, or the zero value if the consumer RecordDurable is missing. An error is an ErrUnavailable.
func (b *Bus) Recorded(ctx context.Context) (r Recorded, err error) {
	conn, err := b.connection(ctx)
	if err != nil {
		return r, unavailable(err)
	}
	consumer, err := conn.recordConsumer(ctx)
	if err != nil || consumer == nil {
		return r, err
	}
	return Recorded{Progress: consumer.AckFloor.Stream + consumer.Delivered.Stream, Waiting: int(consumer.NumPending) + consumer.NumAckPending}, nil
}

// lastOlderThan returns the largest sequence number from first to last whose message was stored before limit, or is
// missing; 0 if there is none.
func lastOlderThan(ctx context.Context, stream jetstream.Stream, first, last uint64, limit time.Time) (uint64, error) {
	var old uint64
	for first <= last && last > 0 {
		middle := first + (last-first)/2
		m, err := stream.GetMsg(ctx, middle)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && m.Time.Before(limit):
			old, first = middle, middle+1
		case err != nil:
			return 0, unavailable(err)
		default:
			last = middle - 1
		}
	}
	return old, nil
}

// removeMessages removes the messages up to purgeTo (0 = none) by one purge, and the messages with the sequence
// numbers in others one by one, several in parallel. purgeCount is how many messages up to purgeTo the caller has
// counted. removed is purgeCount plus the number of others that were deleted, without those that were already gone.
// complete is false after an error, or if some of others are left because the deadline of ctx is closer than trimMargin.
func removeMessages(ctx context.Context, stream jetstream.Stream, purgeTo uint64, purgeCount int, others []uint64) (removed int, complete bool, err error) {
	if purgeTo > 0 {
		if err := stream.Purge(ctx, jetstream.WithPurgeSequence(purgeTo+1)); err != nil {
			return 0, false, unavailable(err)
		}
	}
	end, _ := ctx.Deadline()
	end = end.Add(-trimMargin)
	var next, deleted atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, min(trimDeletes, len(others)))
	for w := range errs {
		all.Go(func() {
			for errs[w] == nil && time.Now().Before(end) {
				i := int(next.Add(1)) - 1
				if i >= len(others) {
					return
				}
				err := stream.DeleteMsg(ctx, others[i])
				if err == nil {
					deleted.Add(1)
				} else if !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) { // ErrMsgDeleteUnsuccessful: the message was already gone
					errs[w] = unavailable(err)
				}
			}
		})
	}
	all.Wait()
	err = cmp.Or(errs...) // usually all are the same
	return purgeCount + int(deleted.Load()), err == nil && int(next.Load()) >= len(others), err
}
