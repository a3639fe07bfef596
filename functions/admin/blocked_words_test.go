package admin_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestBlockedWordsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	w := mustCall[api.BlockedWordResponse](s, "POST", "blocked-words", `{"word":"赌博"}`)
	require.Equal(t, w, mustCall[api.BlockedWordResponse](s, "POST", "blocked-words", `{"word":"赌博"}`))
	require.Equal(t, []api.BlockedWordResponse{w}, mustCall[api.Page[api.BlockedWordResponse]](s, "GET", "blocked-words", "").Items)
	at := fmt.Sprintf("blocked-words/%d", w.ID)
	require.Equal(t, "赌博", mustCall[api.BlockedWordResponse](s, "DELETE", at, "").Word)
	s.requireError(404, "not_found", nil, "DELETE", at, "")
	s.requireError(400, "invalid_request", []string{"word"}, "POST", "blocked-words", `{"word":"\u3000"}`)
	require.Equal(t, []any{"blocked.remove", "blocked.add"}, s.AuditedActions(fmt.Sprintf("blocked_word/%d", w.ID)))
}
