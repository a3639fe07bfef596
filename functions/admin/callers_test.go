package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

func TestCallersAreCreatedChangedAndRevoked(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	created := mustCall[api.CallerResponse](s, "POST", "callers", `{"name":"ops.2","roles":["admin"],"queues":[]}`)
	require.Len(t, created.Token, 43, "256 bits in base64")
	for token, status := range map[string]int{created.Token: 200, created.Token + "x": 401} {
		ops := *s.Client
		ops.User, ops.Password = "ops.2", token
		require.Equal(t, status, ops.Get(cluster.AdminPath+"statistics").Status)
	}
	path := fmt.Sprintf("callers/%d", created.ID)
	shown := s.call("GET", path, "")
	require.NotContains(t, shown.Text, "token")
	require.NotContains(t, s.call("GET", "callers", "").Text, "token")

	changed := mustCall[api.CallerResponse](s, "PUT", path, `{"roles":["submitter","sender"],"queues":["bulk"]}`)
	require.Equal(t, []string{"submitter", "sender"}, changed.Roles)
	require.Equal(t, []string{"bulk"}, changed.Queues)
	require.Empty(t, mustCall[api.CallerResponse](s, "PUT", path, `{"queues":[]}`).Queues, "an empty list means all queues")
	rotated := mustCall[api.CallerResponse](s, "POST", path+"/rotate", "")
	require.NotEqual(t, created.Token, rotated.Token)
	require.Len(t, rotated.Token, 43)
	require.NotNil(t, mustCall[api.CallerResponse](s, "POST", path+"/revoke", "").RevokedAt)
	s.requireError(409, "conflict", nil, "POST", path+"/rotate", "")
	require.Equal(t, []any{"caller.revoke", "caller.rotate", "caller.update", "caller.update", "caller.create"}, s.AuditedActions(fmt.Sprintf("caller/%d", created.ID)))
	require.NotContains(t, s.call("GET", "actions", "").Text, created.Token)

	s.requireError(409, "conflict", nil, "POST", "callers", `{"name":"ops.2","roles":["admin"]}`)
	s.requireError(409, "conflict", nil, "POST", "callers", `{"name":"admin","roles":["admin"]}`)
	s.requireError(400, "invalid_request", []string{"name", "roles[1]", "roles[2]", "queues[0]"}, "POST", "callers", `{"name":"a b","roles":["admin","boss","admin"],"queues":[""]}`)
	s.requireError(400, "invalid_request", []string{"name", "roles"}, "POST", "callers", `{}`)
	s.requireError(400, "invalid_request", []string{"roles"}, "PUT", path, `{"roles":[]}`)
}

func TestSubjectsOfReceiverAreStoredAndChecked(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	created := mustCall[api.CallerResponse](s, "POST", "callers", `{"name":"points","roles":["receiver"],"receives":["msg.orders.>","msg.*.paid"]}`)
	require.Equal(t, []string{"msg.orders.>", "msg.*.paid"}, created.Receives)
	path := fmt.Sprintf("callers/%d", created.ID)
	require.Equal(t, created.Receives, mustCall[api.CallerResponse](s, "PUT", path, `{"roles":["receiver","submitter"]}`).Receives, "fields that are left out do not change")
	require.Equal(t, []string{"bills.sent"}, mustCall[api.CallerResponse](s, "PUT", path, `{"receives":["bills.sent"]}`).Receives)
	require.Equal(t, []string{"bills.sent"}, mustCall[api.CallerResponse](s, "GET", path, "").Receives)
	require.Contains(t, s.call("GET", "actions?subject="+strings.ReplaceAll(path, "callers", "caller"), "").Text, `"receives":["bills.sent"]`)
	require.Empty(t, mustCall[api.CallerResponse](s, "PUT", path, `{"receives":[]}`).Receives, "an empty list means no subjects")
	require.Contains(t, s.call("GET", path, "").Text, `"receives":[]`)

	s.requireError(400, "invalid_request", []string{"receives[1]", "receives[2]"}, "PUT", path, `{"receives":["a","a.>.b","a"]}`)
	s.requireError(400, "invalid_request", []string{"receives[0]"}, "POST", "callers", `{"name":"p","roles":["receiver"],"receives":[""]}`)
	var many []string
	for i := range 101 {
		many = append(many, fmt.Sprintf(`"a%d"`, i))
	}
	s.requireError(400, "invalid_request", []string{"receives"}, "PUT", path, `{"receives":[`+strings.Join(many, ",")+`]}`)
}
