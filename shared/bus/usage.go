package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// usageTimeout bounds the request for one stream: a stream without a leader does not reply.
const usageTimeout = 2 * time.Second

// StreamUsage returns the fillRatio of each stream by the stream's name. It leaves out WAKE, which callers
// cannot fill. The stream of accepted messages is under StreamAccepted, whatever its name is. The ratio of a
// missing stream is 0. The result lacks streams that do not reply; then the error is an ErrUnavailable and has the
// causes.
func (b *Bus) StreamUsage(ctx context.Context) (map[string]float64, error) {
	if _, err := b.connection(ctx); err != nil {
		return nil, unavailable(err)
	}
	used := map[string]float64{}
	var failures []error
	for _, name := range []string{StreamEvents, StreamMessages, StreamUsers, StreamAccepted, StreamDeadLetters} {
		bounded, cancel := context.WithTimeout(ctx, usageTimeout)
		nameInNATS := name
		if name == StreamAccepted {
			nameInNATS = b.cfg.acceptStream()
		}
		_, stream, err := b.stream(bounded, nameInNATS)
		cancel()
		switch {
		case err != nil:
			failures = append(failures, err)
		case stream == nil:
			used[name] = 0
		default:
			used[name] = fillRatio(stream.CachedInfo())
		}
	}
	return used, errors.Join(failures...)
}

// stream looks up a stream; nil, without an error, if there is none.
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

// fillRatio returns the used part of a stream, 0 to 1: of its bytes or of its number of messages, whichever is
// larger. The result is 0 for a stream without these limits.
func fillRatio(info *jetstream.StreamInfo) float64 {
	used := 0.0
	if limit := info.Config.MaxBytes; limit > 0 {
		used = float64(info.State.Bytes) / float64(limit)
	}
	if limit := info.Config.MaxMsgs; limit > 0 {
		used = max(used, float64(info.State.Msgs)/float64(limit))
	}
	return used
}
