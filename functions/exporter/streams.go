package exporter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/cache"
)

const (
	streamsTimeout = 4 * time.Second
	streamsCached  = 5 * time.Second
)

// streams reads and caches how much of each NATS stream is used.
type streams struct {
	refresh cache.Value[struct{}] // reads NATS at most every streamsCached, and stores the usage in last
	last    atomic.Pointer[usage] // of the last read that succeeded; nil = none yet
}

type usage struct {
	at   time.Time
	used map[string]float64 // by stream, 0 to 1
}

func newStreams(read func(context.Context) (map[string]float64, error)) *streams {
	s := &streams{}
	s.refresh.Timeout, s.refresh.Keep = streamsTimeout, streamsCached
	s.refresh.Read = func(ctx context.Context) (none struct{}, err error) {
		used, err := read(ctx)
		if err == nil {
			s.last.Store(&usage{time.Now(), used})
		}
		return none, err
	}
	return s
}

// read returns the usage of the last read that succeeded. current is false if the newest read failed, for any of the streams.
func (s *streams) read() (u usage, current bool) {
	_, err := s.refresh.Get()
	if last := s.last.Load(); last != nil {
		u = *last
	}
	return u, err == nil
}
