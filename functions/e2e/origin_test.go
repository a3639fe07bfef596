package e2e

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/fn"
)

// claimByGET is the only GET route that changes tasks or messages.
const claimByGET = "GET /api/v1/sms/tasks/pending"

// A browser that has stored the password for the service also sends it when a page of another origin makes the request.
func TestCrossOriginPagesCannotChangeAnything(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	env, _ := cluster.NewEnv(t, "postgres://nobody@127.0.0.1:1/none")
	routes, err := fn.Patterns(env, functions.Catalogue()...)
	require.NoError(t, err)
	tried := 0
	for pattern := range routes {
		method, path, _ := strings.Cut(pattern, " ")
		path = regexp.MustCompile(`\{[^}]+\}`).ReplaceAllString(path, "1")
		if method == http.MethodGet && pattern != claimByGET {
			continue
		}
		tried++
		for _, browser := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
			got := s.Do(method, path+"?app_id=a", "", browser...)
			require.Equal(t, 403, got.Status, "%s %v: %s", pattern, browser, got.Text)
			require.Contains(t, got.Text, "pages of another origin")
		}
	}
	require.Greater(t, tried, 30)
}
