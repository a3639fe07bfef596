package tasks

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueueCachesAreBounded(t *testing.T) {
	t.Parallel()
	var g recentlyNonEmpty
	for n := range 2*maxNonEmpty + 1 {
		g.set(strconv.Itoa(n), true)
		require.True(t, g.has(strconv.Itoa(n)))
		require.LessOrEqual(t, len(g.names), maxNonEmpty)
	}
}
