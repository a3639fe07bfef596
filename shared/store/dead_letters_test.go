package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALongListOfDeadLettersCanBeTurnedOver(t *testing.T) {
	t.Parallel()
	page, more, err := open(t).DeadLetters(t.Context(), 1<<40, 2)
	require.NoError(t, err)
	require.Empty(t, page)
	require.False(t, more)
}
