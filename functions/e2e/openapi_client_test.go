package e2e

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// The example is written in TypeScript against types that are generated of
// openapi.yaml; make openapi compiles it first.
func TestGeneratedClientSubmitsClaimsAndReports(t *testing.T) {
	t.Parallel()
	program := os.Getenv("SENDONCE_OPENAPI_CLIENT")
	if program == "" {
		t.Skip("make openapi compiles the client and sets SENDONCE_OPENAPI_CLIENT")
	}
	s := cluster.Serve(t)
	node := exec.CommandContext(t.Context(), "node", program)
	node.Env = append(os.Environ(), "SENDONCE_URL="+s.URL, "SENDONCE_USER="+s.User, "SENDONCE_PASSWORD="+s.Password)
	printed, err := node.CombinedOutput()
	require.NoError(t, err, "%s", printed)
	require.Equal(t, 1, s.Count("select count(*) from tasks join task_done using (id) where queue = 'openapi-example'"), "%s", printed)
	require.Equal(t, 1, s.Count("select count(*) from subscribe_message_logs"), "%s", printed)
}
