package bus

import (
	"context"
	"errors"
	"time"
)

// usageTimeout bounds the request for one stream: a stream without a leader does not reply.
const usageTimeout = 2 * time.Second

// StreamUsage returns the used part, 0 to 1, of the size of each stream except WAKE, whose size
// callers do not influence. Accepted messages are under StreamAccepted, whatever Config.AcceptStream
// is. A missing stream uses nothing. Streams that do not reply are left out, and the error, an
// ErrUnavailable, names the cause.
func (b *Bus) StreamUsage(ctx context.Context) (map[string]float64, error) {
	if _, err := b.connection(ctx); err != nil {
		return nil, unavailable(err)
	}
	used := map[string]float64{}
	var failures []error
	for _, name := range []string{StreamEvents, StreamMessages, StreamUsers, StreamAccepted, StreamDeadLetters} {
		part, err := b.usageOf(ctx, name)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		used[name] = part
	}
	return used, errors.Join(failures...)
}

func (b *Bus) usageOf(ctx context.Context, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if name == StreamAccepted {
		name = b.cfg.acceptStream()
	}
	_, stream, err := b.stream(ctx, name)
	if err != nil || stream == nil {
		return 0, err
	}
	return bytesUsed(stream.CachedInfo()), nil
}
