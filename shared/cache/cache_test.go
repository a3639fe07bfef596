package cache

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConcurrentCallsReadOnce(t *testing.T) {
	t.Parallel()
	began, response := make(chan struct{}, 20), make(chan struct{})
	c := &Value[int]{Timeout: time.Minute, Read: func(context.Context) (int, error) {
		began <- struct{}{}
		<-response
		return 7, nil
	}}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if value, err := c.Get(); value != 7 || err != nil {
				t.Error(value, err)
			}
		})
	}
	<-began
	close(response)
	all.Wait()
	require.Empty(t, began)
}

func TestSlowReadDelaysOnlyOneCallIfTheLastResultIsRecent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		c := &Value[int]{Timeout: 2 * time.Second, Keep: time.Minute, Read: func(context.Context) (int, error) {
			time.Sleep(2 * time.Second)
			return int(reads.Add(1)), errors.New("a host does not respond")
		}}
		value, _ := c.Get()
		require.Equal(t, 1, value)
		for range 3 {
			time.Sleep(time.Second) // the result is no longer fresh
			before := int(reads.Load())
			go c.Get()
			synctest.Wait()
			began := time.Now()
			value, err := c.Get()
			require.Equal(t, before, value)
			require.Error(t, err)
			require.Zero(t, time.Since(began))
			time.Sleep(2 * time.Second)
		}
	})
}

func TestErrorIsFreshForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, blocked := 0, true
		c := &Value[int]{Timeout: 2 * time.Second, Read: func(ctx context.Context) (int, error) {
			reads++
			if blocked {
				<-ctx.Done()
			}
			return reads, ctx.Err()
		}}
		begun := time.Now()
		for range 20 {
			_, err := c.Get()
			require.Error(t, err)
		}
		require.Equal(t, 2*time.Second, time.Since(begun))
		require.Equal(t, 1, reads)
		blocked = false
		time.Sleep(time.Second)
		for range 20 {
			value, err := c.Get()
			require.NoError(t, err)
			require.Equal(t, 2, value)
		}
	})
}

func TestValueIsFreshForKeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		c := &Value[int]{Timeout: time.Second, Keep: time.Minute, Read: func(context.Context) (int, error) { reads++; return reads, nil }}
		for after, want := range []int{1, 1, 2} {
			value, err := c.Get()
			require.NoError(t, err)
			require.Equal(t, want, value, after)
			time.Sleep(30 * time.Second)
		}
	})
}
