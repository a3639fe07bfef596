package loglimit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLogsOncePerMinuteWithNumberOfUnlogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Limit
		next := func() []any { unlogged, log := l.Next(); return []any{int(unlogged), log} }
		require.Equal(t, []any{0, true}, next())
		for range 5 {
			require.Equal(t, []any{0, false}, next())
		}
		time.Sleep(time.Minute)
		require.Equal(t, []any{5, true}, next())
		require.Equal(t, []any{0, false}, next())
	})
}

func TestByKeyLimitsEachKeyAndTheNumberOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b ByKey[int]
		lines := func(from, to int) (n int) {
			for range 3 {
				for key := from; key < to; key++ {
					if _, log := b.Next(key); log {
						n++
					}
				}
			}
			return n
		}
		require.Equal(t, maxKeys, lines(0, maxKeys))
		require.Equal(t, 1, lines(maxKeys, 3*maxKeys), "further keys share one line")
		require.Len(t, b.limits, maxKeys)
		time.Sleep(time.Minute)
		unlogged, log := b.Next(7)
		require.Equal(t, []any{2, true}, []any{int(unlogged), log})
		time.Sleep(time.Minute)
		b.Next(3 * maxKeys)
		require.Len(t, b.limits, 1, "quiet keys are removed")
	})
}
