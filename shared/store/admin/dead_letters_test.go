package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/storetest"
)

func TestDeadLettersArePaged(t *testing.T) {
	t.Parallel()
	page, more, err := storetest.Open(t).Admin.DeadLetters(t.Context(), 1<<40, 2)
	require.NoError(t, err)
	require.Empty(t, page)
	require.False(t, more)
}
