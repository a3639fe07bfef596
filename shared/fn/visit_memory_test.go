package fn

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestTextOfAPageIsChargedToItsVisitor(t *testing.T) {
	t.Parallel()
	budget := newMemoryBudget(64, 0.5)
	call := budget.mustEnter(t, "ann")
	text := (&Visit{memory: &visitMemory{call: call}}).Buffer()
	chunk := bytes.Repeat([]byte("x"), mebibyte)
	var err error
	for err == nil && len(text.Bytes()) < 64*mebibyte {
		_, err = text.Write(chunk)
	}
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 503, refused.Status)
	require.InDelta(t, budget.share/copiesInPage, len(text.Bytes()), 2*mebibyte, "the visitor's share is used")

	neighbour := budget.mustEnter(t, "bob")
	require.NoError(t, neighbour.tryReserve(mebibyte))
	neighbour.release()
	call.release()
	require.Zero(t, budget.used)
}
