package fn

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCachedReadsOnceForConcurrentCalls(t *testing.T) {
	t.Parallel()
	began, answer := make(chan struct{}, 20), make(chan struct{})
	c := &cached[int]{timeout: time.Minute, read: func(context.Context) (int, error) {
		began <- struct{}{}
		<-answer
		return 7, nil
	}}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			value, err := c.get()
			require.NoError(t, err)
			require.Equal(t, 7, value)
		})
	}
	<-began
	close(answer)
	all.Wait()
	require.Empty(t, began)
}

func TestCachedKeepsAFailureForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, silent := 0, true
		c := &cached[int]{timeout: 2 * time.Second, read: func(ctx context.Context) (int, error) {
			reads++
			if silent {
				<-ctx.Done()
			}
			return reads, ctx.Err()
		}}
		begun := time.Now()
		for range 20 {
			_, err := c.get()
			require.Error(t, err)
		}
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.Equal(t, 1, reads)
		silent = false
		time.Sleep(time.Second)
		for range 20 {
			value, err := c.get()
			require.NoError(t, err)
			require.Equal(t, 2, value)
		}
	})
}
