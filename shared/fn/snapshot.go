package fn

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/cache"
	"github.com/sendonce/sendonce/shared/store/overview"
)

const (
	snapshotKeep    = 5 * time.Second
	snapshotTimeout = 10 * time.Second
	countTimeout    = 4 * time.Second // for updating the counters, a part of snapshotTimeout
	snapshotSpacing = 20              // reads of 1 s begin at least 20 s apart, so reads take at most 1/20 of the time
)

// cachedSnapshot caches the result of read for all callers of this process. With an error, Get returns the last snapshot.
func cachedSnapshot(read func(context.Context) (overview.Snapshot, error)) *cache.Value[overview.Snapshot] {
	var last overview.Snapshot
	var next time.Time // when the next snapshot may be read; zero = none was read yet
	return &cache.Value[overview.Snapshot]{Timeout: snapshotTimeout, Keep: snapshotKeep, Read: func(ctx context.Context) (overview.Snapshot, error) {
		began := time.Now()
		if began.Before(next) {
			return last, nil
		}
		snapshot, err := read(ctx)
		if err == nil {
			last, next = snapshot, began.Add(snapshotSpacing*time.Since(began))
		}
		return last, err
	}}
}
