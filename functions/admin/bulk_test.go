package admin_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// A running bulk change stops when its operator could not start it any more.
func TestBulkChangeStopsWhenItsOperatorLosesRights(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const path = cluster.AdminPath + "bulk"
	for name, c := range map[string]struct{ method, path, body, reason string }{
		"quota":    {"PUT", "", `{"max_waiting_tasks":5}`, ""}, // does not stop the bulk change
		"rotated":  {"POST", "/rotate", "", "the token of its operator was replaced"},
		"revoked":  {"POST", "/revoke", "", "its operator was revoked"},
		"demoted":  {"PUT", "", `{"roles":["viewer"]}`, "its operator is not an admin any more"},
		"narrowed": {"PUT", "", `{"queues":["other"]}`, "its operator may not use all of its queues any more"},
	} {
		s.SubmitTo(name)
		operator := s.NewCallerWith(name, fmt.Sprintf(`"roles":["admin"],"queues":[%q,"other"]`, name))
		started := operator.Post(path, `{"action":"cancel","filter":{"state":"pending"},"expected":1,"reason":"withdrawn"}`).RequireOK()
		id := fmt.Sprint(started.Data("caller_id"))
		s.Do(c.method, cluster.AdminPath+"callers/"+id+c.path, c.body).RequireOK()
		for range 2 {
			require.Equal(t, 204, s.Tick("sweep").Status)
		}
		got := s.Get(path + "/" + started.Data("id").(string))
		if c.reason == "" {
			require.Equal(t, "finished", got.Data("state"))
			continue
		}
		require.Equal(t, "stopped", got.Data("state"), name)
		require.Equal(t, c.reason, got.Data("stop_reason"))
		require.EqualValues(t, 0, got.Data("changed"))
	}
}

// A filter whose invalid field is ignored would match more tasks than the operator meant.
func TestBulkChangeRefusesInvalidFilters(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.SubmitTo("q")
	for _, path := range []string{"bulk", "bulk/preview"} {
		for field, filter := range map[string]string{
			"filter.phone_number": `{"state":"pending","phone_number":"abc"}`,
			"filter.state":        `{"state":"nonsense"}`,
		} {
			refused := s.Post(cluster.AdminPath+path, `{"action":"cancel","filter":`+filter+`,"expected":1,"reason":"withdrawn"}`)
			require.Equal(t, 400, refused.Status, refused.Text)
			require.Contains(t, refused.Text, `"`+field+`"`)
		}
	}
}
