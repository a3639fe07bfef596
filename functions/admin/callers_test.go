package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestCallers(t *testing.T) {
	t.Parallel()
	o := startServer(t)
	created := mustCall[api.CallerResponse](o, "POST", "callers", `{"name":"ops.2","roles":["admin"],"queues":[]}`)
	require.Len(t, created.Token, 43, "256 bits")
	require.Equal(t, 200, o.callAs("ops.2", created.Token, "GET", "statistics", "").Code)
	require.Equal(t, 401, o.callAs("ops.2", created.Token+"x", "GET", "statistics", "").Code)
	path := fmt.Sprintf("callers/%d", created.ID)
	shown := o.call("GET", path, "")
	require.NotContains(t, string(shown.Data), "token")
	require.NotContains(t, string(o.call("GET", "callers", "").Data), "token")

	changed := mustCall[api.CallerResponse](o, "PUT", path, `{"roles":["submitter","sender"],"queues":["bulk"]}`)
	require.Equal(t, []string{"submitter", "sender"}, changed.Roles)
	require.Equal(t, []string{"bulk"}, changed.Queues)
	require.Empty(t, mustCall[api.CallerResponse](o, "PUT", path, `{"queues":[]}`).Queues, "an empty list means all queues")
	rotated := mustCall[api.CallerResponse](o, "POST", path+"/rotate", "")
	require.NotEqual(t, created.Token, rotated.Token)
	require.Len(t, rotated.Token, 43)
	require.NotNil(t, mustCall[api.CallerResponse](o, "POST", path+"/revoke", "").RevokedAt)
	o.requireError(409, "conflict", nil, "POST", path+"/rotate", "")
	require.Equal(t, []string{"caller.revoke", "caller.rotate", "caller.update", "caller.update", "caller.create"}, o.actions(fmt.Sprintf("caller/%d", created.ID)))
	require.NotContains(t, string(o.call("GET", "actions", "").Data), created.Token)

	o.requireError(409, "conflict", nil, "POST", "callers", `{"name":"ops.2","roles":["admin"]}`)
	o.requireError(409, "conflict", nil, "POST", "callers", `{"name":"admin","roles":["admin"]}`)
	o.requireError(400, "invalid_request", []string{"name", "roles[1]", "roles[2]", "queues[0]"}, "POST", "callers", `{"name":"a b","roles":["admin","boss","admin"],"queues":[""]}`)
	o.requireError(400, "invalid_request", []string{"name", "roles"}, "POST", "callers", `{}`)
	o.requireError(400, "invalid_request", []string{"roles"}, "PUT", path, `{"roles":[]}`)
}

func TestCallerReceives(t *testing.T) {
	t.Parallel()
	o := startServer(t)
	created := mustCall[api.CallerResponse](o, "POST", "callers", `{"name":"points","roles":["receiver"],"receives":["msg.orders.>","msg.*.paid"]}`)
	require.Equal(t, []string{"msg.orders.>", "msg.*.paid"}, created.Receives)
	path := fmt.Sprintf("callers/%d", created.ID)
	require.Equal(t, created.Receives, mustCall[api.CallerResponse](o, "PUT", path, `{"roles":["receiver","submitter"]}`).Receives, "fields that are left out do not change")
	require.Equal(t, []string{"bills.sent"}, mustCall[api.CallerResponse](o, "PUT", path, `{"receives":["bills.sent"]}`).Receives)
	require.Equal(t, []string{"bills.sent"}, mustCall[api.CallerResponse](o, "GET", path, "").Receives)
	require.Contains(t, string(o.call("GET", "actions?subject="+strings.ReplaceAll(path, "callers", "caller"), "").Data), `"receives":["bills.sent"]`)
	require.Empty(t, mustCall[api.CallerResponse](o, "PUT", path, `{"receives":[]}`).Receives, "an empty list means no subjects")
	require.Contains(t, string(o.call("GET", path, "").Data), `"receives":[]`)

	o.requireError(400, "invalid_request", []string{"receives[1]", "receives[2]"}, "PUT", path, `{"receives":["a","a.>.b","a"]}`)
	o.requireError(400, "invalid_request", []string{"receives[0]"}, "POST", "callers", `{"name":"p","roles":["receiver"],"receives":[""]}`)
	var many []string
	for i := range 101 {
		many = append(many, fmt.Sprintf(`"a%d"`, i))
	}
	o.requireError(400, "invalid_request", []string{"receives"}, "PUT", path, `{"receives":[`+strings.Join(many, ",")+`]}`)
}
