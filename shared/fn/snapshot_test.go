package fn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/overview"
)

func TestSnapshotIsReadOnceForAllCallers(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	env := &Env{snapshot: cachedSnapshot(func(context.Context) (overview.Snapshot, error) {
		return overview.Snapshot{At: time.Unix(reads.Add(1), 0)}, nil
	})}
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			s, err := env.Snapshot()
			if err != nil || s.At.Unix() != 1 {
				t.Error(s.At, err)
			}
		})
	}
	callers.Wait()
	require.EqualValues(t, 1, reads.Load())
}

func TestLastSnapshotIsReturnedWithTheError(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	var reads atomic.Int64
	env := &Env{snapshot: cachedSnapshot(func(context.Context) (s overview.Snapshot, err error) {
		if reads.Add(1) != 2 {
			return s, away
		}
		s.At = time.Unix(7, 0)
		return s, nil
	})}
	env.snapshot.Keep = time.Nanosecond
	s, err := env.Snapshot()
	require.ErrorIs(t, err, away)
	require.Zero(t, s.At)
	require.Eventually(t, func() bool {
		s, err := env.Snapshot()
		return err == nil && s.At.Unix() == 7
	}, time.Minute, 10*time.Millisecond, "after an error, the snapshot is read again a second later")
	require.Eventually(t, func() bool {
		s, err := env.Snapshot()
		return errors.Is(err, away) && s.At.Unix() == 7
	}, time.Minute, time.Millisecond, "the last snapshot is kept")
}
