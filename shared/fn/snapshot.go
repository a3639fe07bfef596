package fn

import (
	"context"
	"sync/atomic"
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

// snapshots caches the overview.Snapshot of this process for all its callers.
type snapshots struct {
	read func(context.Context) (overview.Snapshot, error)

	current cache.Value[overview.Snapshot]
	last    atomic.Pointer[overview.Snapshot] // nil = none was read yet
	next    time.Time                         // when the next snapshot may be read; used only by readIfDue
}

func newSnapshots(read func(context.Context) (overview.Snapshot, error)) *snapshots {
	s := &snapshots{read: read}
	s.current.Read, s.current.Timeout, s.current.Keep = s.readIfDue, snapshotTimeout, snapshotKeep
	return s
}

// readIfDue reads a snapshot, but before s.next it returns the last one. It is called by one goroutine at a time.
func (s *snapshots) readIfDue(ctx context.Context) (overview.Snapshot, error) {
	began := time.Now()
	if last := s.last.Load(); last != nil && began.Before(s.next) {
		return *last, nil
	}
	snapshot, err := s.read(ctx)
	if err != nil {
		return snapshot, err
	}
	s.next = began.Add(snapshotSpacing * time.Since(began))
	s.last.Store(&snapshot)
	return snapshot, nil
}
