package messages

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOldResultOfStreamSharesRefusesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over, failure := map[usageKey]bool{{"USERS", 7}: true}, error(nil)
		s := streamShares{query: func(context.Context) (map[usageKey]bool, error) { return over, failure }}
		streams := []string{"USERS"}
		require.False(t, s.exceeded(7, streams), "the first call waits for no query")
		time.Sleep(time.Second)
		require.True(t, s.exceeded(7, streams))
		require.False(t, s.exceeded(8, streams))

		over, failure = nil, errors.New("the database is unavailable")
		for range 60 {
			time.Sleep(time.Second)
			require.True(t, s.exceeded(7, streams))
		}

		failure = nil
		time.Sleep(time.Hour) // without calls, nothing is read
		require.False(t, s.exceeded(7, streams))
		time.Sleep(time.Second)
		require.False(t, s.exceeded(7, streams))
	})
}
