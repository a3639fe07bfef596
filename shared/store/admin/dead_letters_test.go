package admin_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

// AddDeadLetters and CountPanic truncate the id of an event in the same way, so both find the same row.
func TestPanicsOfAnEventWithALongIDAreCounted(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	id := make([]byte, 10_000) // random: Postgres compresses other long texts, so that they fit into an index row
	for i := range id {
		id[i] = byte('a' + rand.IntN(26))
	}
	l := store.DeadLetter{Function: "save", EventID: string(id), EventType: strings.Repeat("t", 100_000)}
	for panics := 1; panics <= 5; panics++ {
		dead, err := db.Admin.CountPanic(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, panics == 5, dead)
	}
	l.Attempts = 6
	require.NoError(t, db.Admin.AddDeadLetters(t.Context(), l))
	page, _, err := db.Admin.DeadLetters(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, 6, page[0].Attempts)
}
