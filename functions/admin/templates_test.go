package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	o := startServer(t)
	made := mustCall[api.TemplateResponse](o, "POST", "template", `{"template_name": "验证码模板", "template_content": "您的验证码是{code}，用户{name}"}`)
	require.Equal(t, "验证码模板", made.TemplateName)
	require.Equal(t, []string{"code", "name"}, made.Params)
	require.True(t, made.IsActive)
	require.Equal(t, time.UTC, made.CreatedAt.Location())
	at := fmt.Sprintf("template/%d", made.ID)
	require.Equal(t, made, mustCall[api.TemplateResponse](o, "GET", at, ""))

	changed := mustCall[api.TemplateResponse](o, "PUT", at, `{"template_content": "plain"}`)
	require.Equal(t, "验证码模板", changed.TemplateName)
	require.Empty(t, changed.Params)
	require.NotNil(t, changed.Params)
	require.False(t, mustCall[api.TemplateResponse](o, "POST", at+"/deactivate", "").IsActive)
	require.Empty(t, mustCall[api.Page[api.TemplateResponse]](o, "GET", "template?active=true", "").Items)
	require.True(t, mustCall[api.TemplateResponse](o, "POST", at+"/activate", "").IsActive)
	require.Equal(t, []string{"template.activate", "template.deactivate", "template.update", "template.create"}, o.actions(at))

	mustCall[api.TemplateResponse](o, "POST", "template", `{"template_name":"second","template_content":"x"}`)
	page := mustCall[api.Page[api.TemplateResponse]](o, "GET", "template?limit=1", "")
	require.Len(t, page.Items, 1)
	page = mustCall[api.Page[api.TemplateResponse]](o, "GET", "template?limit=1&after="+page.NextAfter, "")
	require.Equal(t, "second", page.Items[0].TemplateName)
	require.Empty(t, page.NextAfter)
}

func TestPreview(t *testing.T) {
	t.Parallel()
	o := startServer(t)
	made := mustCall[api.TemplateResponse](o, "POST", "template", `{"template_name":"t","template_content":"您的验证码是{code}，用户{name}"}`)
	at := fmt.Sprintf("template/%d/preview", made.ID)
	require.Equal(t, api.PreviewResponse{
		FinalContent: "您的验证码是123456，用户张三", Segments: 1, Encoding: "UCS-2", Length: 17,
		MissingParams: []string{}, UnusedParams: []string{"x"}, Sendable: true,
	}, mustCall[api.PreviewResponse](o, "POST", at, `{"content":"code=123456&name=%E5%BC%A0%E4%B8%89&x=1"}`))

	short := mustCall[api.PreviewResponse](o, "POST", at, `{"params":{"code":123456}}`)
	require.Equal(t, []string{"name"}, short.MissingParams)
	require.False(t, short.Sendable)
	require.Contains(t, short.Problem, "params.name")
	long := mustCall[api.PreviewResponse](o, "POST", at, `{"params":{"code":"`+strings.Repeat("1", 200)+`","name":"a"}}`)
	require.False(t, long.Sendable)

	draft := mustCall[api.PreviewResponse](o, "POST", "template/preview", `{"template_content":"hi {who}","params":{"who":true}}`)
	require.Equal(t, "hi true", draft.FinalContent)
	require.True(t, draft.Sendable)
	mustCall[api.BlockedWordResponse](o, "POST", "blocked-words", `{"word":"HI"}`)
	require.False(t, mustCall[api.PreviewResponse](o, "POST", "template/preview", `{"template_content":"hi"}`).Sendable)

	repeated := mustCall[api.PreviewResponse](o, "POST", "template/preview",
		`{"template_content":"`+strings.Repeat("{a}", 66)+`","params":{"a":"`+strings.Repeat("1", 4000)+`"}}`)
	require.Equal(t, 2000, repeated.Length)
	require.Len(t, repeated.FinalContent, 2000)
	require.Contains(t, repeated.Problem, "at most 200 characters")

	o.refused(400, "invalid_request", []string{"params.a"}, "POST", "template/preview", `{"template_content":"{a}","params":{"a":"`+strings.Repeat("1", 4001)+`"}}`)
	o.refused(400, "invalid_request", []string{"params", "template_content"}, "POST", at, `{"content":"a=b","params":{},"template_content":"x"}`)
	o.refused(400, "invalid_request", []string{"content", "template_content"}, "POST", "template/preview", `{"content":"a=%zz"}`)
	o.refused(400, "invalid_request", []string{"params.a", "template_content"}, "POST", "template/preview", `{"params":{"a":[]}}`)
	o.refused(404, "not_found", nil, "POST", "template/99/preview", `{}`)
	require.Len(t, mustCall[api.Page[api.ActionResponse]](o, "GET", "actions", "").Items, 2, "previews add no audit entries")
}
