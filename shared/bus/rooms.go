package bus

import (
	"sync"
	"sync/atomic"
	"time"
)

// headerBytes estimates what a stream stores per message beside its data.
const headerBytes = 500

// rooms knows how much room the streams MESSAGES and USERS have (see NearlyFull).
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
