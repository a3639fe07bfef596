package tasks

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecentlyNonEmptyIsBounded(t *testing.T) {
	t.Parallel()
	var r recentlyNonEmpty
	for n := range 2*maxNonEmpty + 1 {
		r.set(strconv.Itoa(n), true)
		require.True(t, r.has(strconv.Itoa(n)))
		require.LessOrEqual(t, len(r.names), maxNonEmpty)
	}
}
