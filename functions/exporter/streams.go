package exporter

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/cache"
)

const (
	streamsTimeout = 4 * time.Second
	streamsCached  = 5 * time.Second
)

// usage is how much of each NATS stream is used.
type usage struct {
	at   time.Time          // when it was read; zero = never
	used map[string]float64 // by stream, 0 to 1
}

// cachedUsage caches the result of read. With an error, Get returns the usage of the last read that succeeded.
func cachedUsage(read func(context.Context) (map[string]float64, error)) *cache.Value[usage] {
	var last usage
	return &cache.Value[usage]{Timeout: streamsTimeout, Keep: streamsCached, Read: func(ctx context.Context) (usage, error) {
		used, err := read(ctx)
		if err == nil {
			last = usage{time.Now(), used}
		}
		return last, err
	}}
}
