package fn

import (
	"bytes"
	"cmp"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// An export calls the API once for each page of rows, and keeps only one page in memory.
func TestReleasedResponsesMakeRoom(t *testing.T) {
	t.Parallel()
	budget := newMemoryBudget(40, 0.5)
	call := budget.mustEnter(t, "ann")
	rows := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(`{"data":"` + strings.Repeat("x", mebibyte) + `"}`))
	})
	v := &Visit{Request: httptest.NewRequest("GET", "/", nil), api: rows, memory: &visitMemory{call: call}}
	read := func() error {
		var text string
		return v.API("GET", "/", nil, &text)
	}
	for range 12 {
		require.NoError(t, read())
		v.ReleaseResponses()
	}
	var err error
	for range 12 {
		err = cmp.Or(err, read())
	}
	require.Error(t, err, "responses that are not released use up the visitor's share")
	call.release()
	require.Zero(t, budget.used)
}

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
