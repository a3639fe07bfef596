package natsserver

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTemporaryNATSIsRemoved(t *testing.T) {
	t.Parallel()
	n, err := Start(t.Context(), Options{})
	require.NoError(t, err)
	require.DirExists(t, n.dir)
	require.NoError(t, n.Stop())
	require.NoDirExists(t, n.dir)
}

func TestNATSOnTakenPortFails(t *testing.T) {
	t.Parallel()
	first := New(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := Start(ctx, Options{Port: first.Port()})
	require.ErrorContains(t, err, "is the port taken?")
}
