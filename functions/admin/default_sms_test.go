package admin_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestDefaultSMSIsAddedChangedAndDeleted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	body := `{"phone_number": "13800138000", "content": "欢迎使用我们的服务", "use_template": false}`
	created := mustCall[api.DefaultSMSResponse](s, "POST", "default-sms", body)
	require.Equal(t, "欢迎使用我们的服务", created.Content)
	require.False(t, created.IsSent)
	s.requireError(409, "default_exists", nil, "POST", "default-sms", body)
	path := fmt.Sprintf("default-sms/%d", created.ID)
	require.Equal(t, created, mustCall[api.DefaultSMSResponse](s, "GET", path, ""))

	s.submit(func(s *tasks.Submission) { s.Draft = task.Draft{} })
	require.Len(t, mustCall[api.Page[api.DefaultSMSResponse]](s, "GET", "default-sms?is_sent=true&phone_number=13800138000", "").Items, 1)
	require.False(t, mustCall[api.DefaultSMSResponse](s, "POST", path+"/reset", "").IsSent)
	s.requireError(400, "invalid_request", []string{"content"}, "PUT", path, `{"use_template":true,"content":"code=%"}`)
	require.True(t, mustCall[api.DefaultSMSResponse](s, "PUT", path, `{"use_template":true,"content":""}`).UseTemplate)
	s.requireError(400, "invalid_request", []string{"content"}, "PUT", path, `{"use_template":false}`)
	require.Equal(t, created.ID, mustCall[api.DefaultSMSResponse](s, "DELETE", path, "").ID)
	s.requireError(404, "not_found", nil, "GET", path, "")
	s.requireError(404, "not_found", nil, "DELETE", path, "")
	require.Equal(t, []any{"default.delete", "default.update", "default.reset", "default.create"}, s.AuditedActions(fmt.Sprintf("default/%d", created.ID)))

	plus := mustCall[api.DefaultSMSResponse](s, "POST", "default-sms", `{"phone_number":"+8613800138000","content":"x"}`)
	require.Equal(t, plus.ID, mustCall[api.Page[api.DefaultSMSResponse]](s, "GET", "default-sms?phone_number=%2B8613800138000", "").Items[0].ID)
	r := s.call("GET", "default-sms?phone_number=+8613800138000", "")
	require.Equal(t, 400, r.Status)
	require.Contains(t, r.Text, "%2B")
}
