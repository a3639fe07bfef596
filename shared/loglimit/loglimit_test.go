package loglimit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOneLineAMinuteCountsTheOthers(t *testing.T) {
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
