package messages

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOldResultOfStreamSharesRefusesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over := map[usageKey]bool{{"USERS", 7}: true}
		s := streamShares{query: func(context.Context) (map[usageKey]bool, error) { return over, nil }}
		streams := []string{"USERS"}
		require.False(t, s.exceeded(7, streams), "the first call waits for no query")
		time.Sleep(time.Second)
		require.True(t, s.exceeded(7, streams))
		require.False(t, s.exceeded(8, streams))

		over = nil
		time.Sleep(time.Hour) // without calls, nothing is read
		require.False(t, s.exceeded(7, streams))
		time.Sleep(time.Second)
		require.False(t, s.exceeded(7, streams))
	})
}
