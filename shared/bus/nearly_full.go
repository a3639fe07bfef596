package bus

import (
	"context"
	"time"
)

const (
	roomCheckBytes   = mib                    // sent to a stream between two checks of its room
	roomCheckEvery   = 100 * time.Millisecond // while the stream is nearly full
	roomCheckTimeout = 500 * time.Millisecond // of one check
	roomCheckPause   = 5 * time.Second        // after a failed check
)

// NearlyFull returns the free bytes of MESSAGES and USERS, if more than 90% of the stream is used. It sends a request to NATS
// for each MiB that this process has sent to a stream and, while a stream is nearly full, every 100 ms. If the stream does not
// reply within half a second, NearlyFull returns the last result for 5 s.
func (b *Bus) NearlyFull(ctx context.Context) (free map[string]int64) {
	if b == nil {
		return nil
	}
	b.rooms.mu.Lock()
	defer b.rooms.mu.Unlock()
	free = map[string]int64{}
	for name, r := range map[string]*room{StreamMessages: &b.rooms.messages, StreamUsers: &b.rooms.users} {
		if (r.nearlyFull || r.sent.Load() >= roomCheckBytes) && time.Now().After(r.nextCheck) {
			b.checkRoom(ctx, name, r)
		}
		if r.nearlyFull {
			free[name] = r.free
		}
	}
	return free
}

func (b *Bus) checkRoom(ctx context.Context, name string, r *room) {
	checkCtx, cancel := context.WithTimeout(ctx, roomCheckTimeout)
	defer cancel()
	sent := r.sent.Load()
	_, stream, err := b.stream(checkCtx, name)
	switch {
	case ctx.Err() != nil: // the call ends
		return
	case err != nil:
		r.nextCheck = time.Now().Add(roomCheckPause)
		return
	}
	r.sent.Add(-sent)
	r.nearlyFull, r.free, r.nextCheck = false, 0, time.Now().Add(roomCheckEvery)
	if stream == nil {
		return
	}
	info := stream.CachedInfo()
	r.free = max(info.Config.MaxBytes-int64(info.State.Bytes), 0)
	r.nearlyFull = info.Config.MaxBytes > 0 && float64(r.free) < (1-nearlyFull)*float64(info.Config.MaxBytes)
}
