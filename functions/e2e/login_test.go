package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestAProcessThatStartsForOneCallLogsInOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	operator := serveHandler(t, handler(t, url)).caller("operator", "admin")
	const anID = "018f0000-0000-7000-8000-000000000000"
	ids := strings.NewReplacer(
		"/webhooks/endpoints/{id}", "/webhooks/endpoints/"+anID, "/webhooks/deliveries/{id}", "/webhooks/deliveries/"+anID,
		"/messages/{id}", "/messages/"+anID, "{task_id}", anID, "{client_msg_id}", "x", "{key}", "x", "{id}", "1",
	)
	queries := map[string]string{
		"/api/v1/messages": "?between=ann,bob", "/api/v1/messages/stuck": "?kind=sending", "/api/v1/sms/tasks/pending": "?app_id=a",
		"/api/v1/subscribe/logs": "?business_type=a&business_id=1",
		"/api/v1/subscribe/sent": "?business_type=a&business_id=1&template_type=a&receiver_user_id=1",
	}
	for pattern := range readContract(t).operations {
		method, path, _ := strings.Cut(pattern, " ")
		if method != "GET" || !strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/api/v1/stream/") {
			continue
		}
		env, h := environment(t, url)
		fresh := serveHandler(t, h)
		fresh.user, fresh.password = operator.user, operator.password
		answer := fresh.get(ids.Replace(path) + queries[path])
		assert.Contains(t, []int{200, 404}, answer.status, "%s %s", pattern, answer.text)
		var logins int32
		for _, pool := range env.DB().Stats() {
			logins += pool.TotalConns()
		}
		assert.EqualValues(t, 1, logins, pattern)
	}
}
