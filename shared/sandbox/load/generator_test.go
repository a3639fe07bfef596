package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGeneratorRepeatsFailedCalls(t *testing.T) {
	t.Parallel()
	g := New(t.Context())
	var calls atomic.Int64
	released := make(chan struct{})
	g.Start("odd calls fail", time.Millisecond, func(context.Context) error {
		n := calls.Add(1)
		if n == 5 {
			<-released // so that Stop comes during a call that fails
		}
		if n%2 == 1 {
			return errors.New("odd")
		}
		return nil
	})
	require.NoError(t, g.WaitSucceeded(t.Context(), 2))
	time.AfterFunc(20*time.Millisecond, func() { close(released) })
	g.Stop()
	o := g.Outcomes()["odd calls fail"]
	require.EqualValues(t, 6, calls.Load())
	require.Equal(t, 3, o.Succeeded)
	require.Len(t, o.Failures, 3)
	require.Len(t, o.Took, 3)
	require.Positive(t, o.Slowest())
}

func TestWaitErrorNamesOnlyUnfinishedKinds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := New(ctx)
	g.Start("good", time.Millisecond, func(context.Context) error { return nil })
	g.Start("bad", time.Millisecond, func(context.Context) error { return errors.New("refused") })
	require.NoError(t, g.WaitSucceeded(t.Context(), 3, "good"))
	require.NoError(t, g.WaitFailed(t.Context(), 3, "bad"))
	short, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer end()
	require.ErrorContains(t, g.WaitSucceeded(short, 1), "wait for 1 more successful calls of bad: ")
	cancel()
	g.Stop()
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	require.Zero(t, Quantile([]int(nil), 0.5))
	require.Equal(t, 2, Quantile([]int{1, 2, 3}, 0.5))
	require.Equal(t, 3, Quantile([]int{1, 2, 3}, 1))
}
