package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestCallersAreFoundByIDAndName(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.NewCaller("shop", "submitter") // id 1
	ops := s.NewCaller("ops", "admin", "otp")
	viewer := s.NewCaller("viewer", "viewer")
	const path = cluster.AdminPath + "callers/names?"
	names := func(c *cluster.Client, query string) map[string]string {
		got := c.Get(path + query).RequireOK()
		found := map[string]string{}
		for _, row := range got.Data("callers").([]any) {
			row := row.(map[string]any)
			found[row["id"].(string)] = row["name"].(string)
		}
		return found
	}
	require.Equal(t, map[string]string{"0": s.User, "1": "shop", "2": "ops"}, names(viewer, "ids=0,1,1,2,99"))
	require.Equal(t, map[string]string{"1": "shop"}, names(viewer, "name=shop"))
	require.Equal(t, map[string]string{"0": s.User}, names(viewer, "name="+s.User))
	require.Empty(t, names(viewer, "name=nobody"))
	require.Equal(t, map[string]string{"2": "ops"}, names(ops, "ids=0,1,2"), "an admin with queues sees only the callers that it manages")
	for _, query := range []string{"", "ids=1&name=shop", "ids=1,", "ids=-1", "ids=a", "name=a%20b"} {
		require.Equal(t, 400, s.Get(path+query).Status, query)
	}
}
