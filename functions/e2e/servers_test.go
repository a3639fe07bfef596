package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// docs/platform.md lists these differences between our server and that of the Functions Framework.
func TestDocumentedDifferencesOfTheServers(t *testing.T) {
	t.Parallel()
	const none = "postgres://nobody@127.0.0.1:1/none"
	statuses := map[string]struct{ doubleSlash, longHeader int }{cluster.OwnServer.Name: {404, 431}, cluster.Framework.Name: {307, 200}}
	cluster.OnBothServers(t, func(t *testing.T, h cluster.Host) {
		s, want := h.At(t, none, ""), statuses[h.Name]
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		status := func(path, header string) int {
			req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+path, nil)
			require.NoError(t, err)
			req.Header.Set("X-Long", header)
			res, err := client.Do(req)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			return res.StatusCode
		}
		require.Equal(t, want.doubleSlash, status("//healthz", ""))
		require.Equal(t, want.longHeader, status("/healthz", strings.Repeat("x", 64<<10)))
	})
}

func TestPollEndsBeforeFrameworkDeadline(t *testing.T) {
	t.Parallel()
	_, url := cluster.ServeByFramework(t, cluster.Settings(sandbox.NewDatabase(t), "CLOUD_RUN_TIMEOUT_SECONDS=3")...)
	s := cluster.NewClient(t, url)
	began := time.Now()
	poll := s.Get("/api/v1/sms/tasks/pending?app_id=a&wait=30").RequireOK()
	require.Empty(t, poll.List())
	require.Less(t, time.Since(began), 10*time.Second)
}
