package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestTemplatesAreAddedAndChanged(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	created := mustCall[api.TemplateResponse](s, "POST", "template", `{"template_name": "验证码模板", "template_content": "您的验证码是{code}，用户{name}"}`)
	require.Equal(t, "验证码模板", created.TemplateName)
	require.Equal(t, []string{"code", "name"}, created.Params)
	require.True(t, created.IsActive)
	require.Equal(t, time.UTC, created.CreatedAt.Location())
	path := fmt.Sprintf("template/%d", created.ID)
	require.Equal(t, created, mustCall[api.TemplateResponse](s, "GET", path, ""))

	changed := mustCall[api.TemplateResponse](s, "PUT", path, `{"template_content": "plain"}`)
	require.Equal(t, "验证码模板", changed.TemplateName)
	require.Empty(t, changed.Params)
	require.NotNil(t, changed.Params)
	require.False(t, mustCall[api.TemplateResponse](s, "POST", path+"/deactivate", "").IsActive)
	require.Empty(t, mustCall[api.Page[api.TemplateResponse]](s, "GET", "template?active=true", "").Items)
	require.True(t, mustCall[api.TemplateResponse](s, "POST", path+"/activate", "").IsActive)
	require.Equal(t, []any{"template.activate", "template.deactivate", "template.update", "template.create"}, s.AuditedActions(path))

	mustCall[api.TemplateResponse](s, "POST", "template", `{"template_name":"second","template_content":"x"}`)
	page := mustCall[api.Page[api.TemplateResponse]](s, "GET", "template?limit=1", "")
	require.Len(t, page.Items, 1)
	page = mustCall[api.Page[api.TemplateResponse]](s, "GET", "template?limit=1&after="+page.NextAfter, "")
	require.Equal(t, "second", page.Items[0].TemplateName)
	require.Empty(t, page.NextAfter)
}

func TestPreviewChecksTheText(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	created := mustCall[api.TemplateResponse](s, "POST", "template", `{"template_name":"t","template_content":"您的验证码是{code}，用户{name}"}`)
	path := fmt.Sprintf("template/%d/preview", created.ID)
	require.Equal(t, api.PreviewResponse{
		FinalContent: "您的验证码是123456，用户张三", Segments: 1, Encoding: "UCS-2", Length: 17,
		MissingParams: []string{}, UnusedParams: []string{"x"}, Sendable: true,
	}, mustCall[api.PreviewResponse](s, "POST", path, `{"content":"code=123456&name=%E5%BC%A0%E4%B8%89&x=1"}`))

	missing := mustCall[api.PreviewResponse](s, "POST", path, `{"params":{"code":123456}}`)
	require.Equal(t, []string{"name"}, missing.MissingParams)
	require.False(t, missing.Sendable)
	require.Contains(t, missing.Problem, "params.name")
	tooLong := mustCall[api.PreviewResponse](s, "POST", path, `{"params":{"code":"`+strings.Repeat("1", 200)+`","name":"a"}}`)
	require.False(t, tooLong.Sendable)

	draft := mustCall[api.PreviewResponse](s, "POST", "template/preview", `{"template_content":"hi {who}","params":{"who":true}}`)
	require.Equal(t, "hi true", draft.FinalContent)
	require.True(t, draft.Sendable)
	mustCall[api.BlockedWordResponse](s, "POST", "blocked-words", `{"word":"HI"}`)
	require.False(t, mustCall[api.PreviewResponse](s, "POST", "template/preview", `{"template_content":"hi"}`).Sendable)

	repeated := mustCall[api.PreviewResponse](s, "POST", "template/preview",
		`{"template_content":"`+strings.Repeat("{a}", 66)+`","params":{"a":"`+strings.Repeat("1", 4000)+`"}}`)
	require.Equal(t, 2000, repeated.Length)
	require.Len(t, repeated.FinalContent, 2000)
	require.Contains(t, repeated.Problem, "at most 200 characters")

	s.requireError(400, "invalid_request", []string{"params.a"}, "POST", "template/preview", `{"template_content":"{a}","params":{"a":"`+strings.Repeat("1", 4001)+`"}}`)
	s.requireError(400, "invalid_request", []string{"params", "template_content"}, "POST", path, `{"content":"a=b","params":{},"template_content":"x"}`)
	s.requireError(400, "invalid_request", []string{"content", "template_content"}, "POST", "template/preview", `{"content":"a=%zz"}`)
	s.requireError(400, "invalid_request", []string{"params.a", "template_content"}, "POST", "template/preview", `{"params":{"a":[]}}`)
	s.requireError(404, "not_found", nil, "POST", "template/99/preview", `{}`)
	require.Len(t, mustCall[api.Page[api.ActionResponse]](s, "GET", "actions", "").Items, 2, "previews add no audit entries")
}
