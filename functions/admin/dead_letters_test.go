package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store"
)

func TestDeadLettersAreListedAndDismissed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i := range 3 {
		require.NoError(t, s.env.Admin.AddDeadLetters(t.Context(), store.DeadLetter{
			Function: "deliver", EventID: fmt.Sprintf("e-%d", i), EventType: "sendonce.task.failed.v1", Event: `{"state":"lost"}`, Reason: "no such state", Attempts: 1 + i,
		}))
	}
	page := mustCall[api.Page[api.DeadLetterResponse]](s, "GET", "dead-letters?limit=2", "")
	require.Equal(t, []string{"e-2", "e-1"}, []string{page.Items[0].EventID, page.Items[1].EventID}, "newest first")
	newest := page.Items[0]
	require.Equal(t, api.DeadLetterResponse{
		ID: newest.ID, Function: "deliver", EventID: "e-2", EventType: "sendonce.task.failed.v1", Event: `{"state":"lost"}`,
		Reason: "no such state", Attempts: 3, CreatedAt: newest.CreatedAt,
	}, newest)
	rest := mustCall[api.Page[api.DeadLetterResponse]](s, "GET", "dead-letters?limit=2&after="+page.NextAfter, "")
	require.Len(t, rest.Items, 1)
	require.Empty(t, rest.NextAfter)

	path := fmt.Sprintf("dead-letters/%d/dismiss", newest.ID)
	for _, body := range []string{`{}`, `{"reason":"\u3000"}`, `{"reason":"` + strings.Repeat("x", 501) + `"}`} {
		s.requireError(400, "invalid_request", []string{"reason"}, "POST", path, body)
	}
	require.Equal(t, http.StatusNoContent, s.call("POST", path, `{"reason":"informed by phone"}`).Status)
	s.requireError(404, "not_found", nil, "POST", path, `{"reason":"informed by phone"}`)
	require.Len(t, mustCall[api.Page[api.DeadLetterResponse]](s, "GET", "dead-letters", "").Items, 2)
	actions := mustCall[api.Page[api.ActionResponse]](s, "GET", fmt.Sprintf("actions?subject=dead_letter/%d", newest.ID), "").Items
	require.Len(t, actions, 1)
	require.Equal(t, "dead_letter.dismiss", actions[0].Action)
	require.Equal(t, "informed by phone", actions[0].Reason)
	require.True(t, json.Valid(actions[0].Before))
	require.Contains(t, string(actions[0].Before), "e-2", "the audit entry has the dead letter")
	require.Nil(t, actions[0].After)
}

func TestViewersDoNotSeeTheEventOfADeadLetter(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	viewer := s.NewCaller("viewer", "viewer")
	requireHidden := func(path string) {
		require.Contains(t, s.call("GET", path, "").Text, "SECRETMARK", path)
		got := viewer.Get(cluster.AdminPath + path).RequireOK()
		require.Contains(t, got.Text, `"reason":"no such state"`, path)
		require.NotContains(t, got.Text, "SECRETMARK", path)
	}
	for _, event := range []string{`{"to":"https://shop.example/SECRETMARK"}`, `{"data":{"url":"https://shop.example/SECRETMARK"}}`, `not JSON https://shop.example/SECRETMARK`} {
		require.NoError(t, s.env.Admin.AddDeadLetters(t.Context(), store.DeadLetter{
			Function: "deliver", EventID: "e", EventType: "sendonce.message.accepted.v1", Event: event, Reason: "no such state", Attempts: 1,
		}))
		requireHidden("dead-letters")
		id := mustCall[api.Page[api.DeadLetterResponse]](s, "GET", "dead-letters", "").Items[0].ID
		s.call("POST", fmt.Sprintf("dead-letters/%d/dismiss", id), `{"reason":"repaired"}`)
		requireHidden(fmt.Sprintf("actions?subject=dead_letter/%d", id))
	}
}
