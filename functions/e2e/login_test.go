package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// Each connection that the first call of a process opens makes this call slower, by one login at Postgres.
func TestFirstCallOpensOneConnectionPerRole(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	operator := cluster.ServeOn(t, url).NewCaller("operator", "admin")
	const anID = "018f0000-0000-7000-8000-000000000000"
	ids := strings.NewReplacer(
		"/webhooks/endpoints/{id}", "/webhooks/endpoints/"+anID, "/webhooks/deliveries/{id}", "/webhooks/deliveries/"+anID,
		"/admin/bulk/{id}", "/admin/bulk/"+anID, "/messages/{id}", "/messages/"+anID, "{task_id}", anID, "{client_msg_id}", "x", "{key}", "x", "{id}", "1",
	)
	queries := map[string]string{
		"/api/v1/messages": "?between=ann,bob", "/api/v1/messages/stuck": "?kind=sending", "/api/v1/sms/tasks/pending": "?app_id=a",
		"/api/v1/admin/search": "?q=" + anID, "/api/v1/admin/callers/names": "?ids=1",
		"/api/v1/subscribe/logs": "?business_type=a&business_id=1",
		"/api/v1/subscribe/sent": "?business_type=a&business_id=1&template_type=a&receiver_user_id=1",
	}
	for pattern := range contract.Read(t).Operations {
		method, path, _ := strings.Cut(pattern, " ")
		if method != "GET" || !strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/api/v1/stream/") {
			continue
		}
		env, h := cluster.NewEnv(t, url)
		fresh := cluster.ServeHandler(t, h)
		fresh.User, fresh.Password = operator.User, operator.Password
		response := fresh.Get(ids.Replace(path) + queries[path])
		assert.Contains(t, []int{200, 404}, response.Status, "%s %s", pattern, response.Text)
		want := 1
		if path == "/api/v1/admin/overview" || path == "/api/v1/admin/search" {
			want = 2 // each uses two database roles: the overview also writes counters, and the search also reads tasks by id
		}
		assert.EqualValues(t, want, env.DatabaseConnections(), pattern)
	}
}
