package bus

import (
	"context"
	"errors"
	"time"
)

// usageTimeout bounds the question about one stream: one without a leader does not
// answer.
const usageTimeout = 2 * time.Second

// StreamUsage is the part of its bytes, 0 to 1, that each of our streams uses, WAKE
// excepted, whose size no caller decides; that of accepted messages is
// StreamAccepted, whatever Config.AcceptStream calls it. A stream that does not
// exist uses nothing. Streams that do not answer are left out, and the error, which
// is ErrUnavailable, says why.
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

// StreamUsage is Bus.StreamUsage.
func (t *Trigger) StreamUsage(ctx context.Context) (map[string]float64, error) {
	return t.bus.StreamUsage(ctx)
}
