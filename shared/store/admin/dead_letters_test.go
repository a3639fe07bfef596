package admin_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestDeadLettersArePaged(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for n := range 3 {
		require.NoError(t, db.Admin.Bury(t.Context(), store.DeadLetter{Function: "save", EventID: fmt.Sprint(n), Attempts: 1}))
	}
	var seen []string
	for after, more := int64(0), true; more; {
		var page []store.DeadLetter
		var err error
		page, more, err = db.Admin.DeadLetters(t.Context(), after, 2)
		require.NoError(t, err)
		for _, l := range page {
			seen, after = append(seen, l.EventID), l.ID
		}
	}
	require.Equal(t, []string{"2", "1", "0"}, seen, "newest first")
}
