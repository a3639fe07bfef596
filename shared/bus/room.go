package bus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	roomCheckBytes   = mib                    // sent to a stream between two checks of its room
	roomCheckTimeout = 500 * time.Millisecond // of one check
	roomCheckPause   = 5 * time.Second        // after a failed check; until the next check the stream counts as not nearly full
)

// rooms knows how much room the streams MESSAGES and USERS have.
type rooms struct {
	messages, users room
	mu              sync.Mutex // of everything in both except sent; held during a check
}

type room struct {
	sent       atomic.Int64 // bytes that this process has sent to the stream since the last check
	nearlyFull bool         // at the last check
	free       int64        // bytes, at the last check
	nextCheck  time.Time    // the earliest time of the next check
}

// count adds the bytes of a message that is sent to one of our streams.
func (r *rooms) count(stream string, bytes int) {
	switch stream {
	case StreamMessages:
		r.messages.sent.Add(int64(bytes))
	case StreamUsers:
		r.users.sent.Add(int64(bytes))
	}
}

// NearlyFull returns the free bytes of MESSAGES and USERS, if more than 90% of the stream is used. It sends a request to NATS
// for each MiB that this process has sent to a stream and, while a stream is nearly full, in each call. It leaves out a stream
// that does not reply within half a second.
func (b *Bus) NearlyFull(ctx context.Context) (free map[string]int64) {
	if b == nil {
		return nil
	}
	b.rooms.mu.Lock()
	defer b.rooms.mu.Unlock()
	free = map[string]int64{}
	for name, r := range map[string]*room{StreamMessages: &b.rooms.messages, StreamUsers: &b.rooms.users} {
		if now := time.Now(); (r.nearlyFull || r.sent.Load() >= roomCheckBytes) && now.After(r.nextCheck) {
			r.sent.Store(0)
			var err error
			if r.nearlyFull, r.free, err = b.checkRoom(ctx, name); err != nil {
				r.nextCheck = now.Add(roomCheckPause)
			}
		}
		if r.nearlyFull {
			free[name] = r.free
		}
	}
	return free
}

func (b *Bus) checkRoom(ctx context.Context, name string) (isNearlyFull bool, free int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, roomCheckTimeout)
	defer cancel()
	_, stream, err := b.stream(ctx, name)
	if err != nil || stream == nil {
		return false, 0, err
	}
	info := stream.CachedInfo()
	free = max(info.Config.MaxBytes-int64(info.State.Bytes), 0)
	return info.Config.MaxBytes > 0 && float64(free) < (1-nearlyFull)*float64(info.Config.MaxBytes), free, nil
}
