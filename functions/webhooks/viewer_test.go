package webhooks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// The URL of an endpoint or robot may be a secret: viewers see only its host, in lists, alone and in the audit log.
func TestViewersSeeOnlyTheHostOfURLs(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	made := s.Post(cluster.EndpointsPath, `{"url":"https://hooks.example.com/services/SECRETMARK?key=SECRETMARK","events":["alert.raised"],"format":"slack"}`)
	require.Equal(t, 200, made.Status, made.Text)
	id := made.Data("id").(string)
	eyes := s.NewCaller("eyes", "viewer")
	for _, path := range []string{cluster.EndpointsPath, cluster.EndpointsPath + "/" + id, cluster.AdminPath + "actions"} {
		require.Contains(t, s.Get(path).Text, "SECRETMARK", path)
		got := eyes.Get(path)
		require.Equal(t, 200, got.Status, got.Text)
		require.NotContains(t, got.Text, "SECRETMARK", path)
		require.Contains(t, got.Text, `"https://hooks.example.com/****"`, path)
	}
}
