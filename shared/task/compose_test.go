package task

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestComposeLimitsText(t *testing.T) {
	t.Parallel()
	_, err := Draft{Content: strings.Repeat("中", 200)}.Compose(nil)
	require.NoError(t, err, "characters, not bytes")
	_, err = Draft{Content: strings.Repeat("中", 201)}.Compose(nil)
	require.Equal(t, CodeInvalid, CodeOf(err))

	tmpl := &StoredTemplate{ID: 1, Name: "t", Content: "{a}{a}"}
	_, err = Draft{UseTemplate: true, Params: map[string]string{"a": strings.Repeat("x", 100)}}.Compose(tmpl)
	require.NoError(t, err)
	_, err = Draft{UseTemplate: true, Params: map[string]string{"a": strings.Repeat("x", 101)}}.Compose(tmpl)
	require.Equal(t, CodeInvalid, CodeOf(err))
	_, err = Draft{UseTemplate: true, Params: map[string]string{"a": " "}}.Compose(tmpl)
	require.Equal(t, CodeInvalid, CodeOf(err), "a blank text")
}

func TestComposeOriginalExample(t *testing.T) {
	t.Parallel()
	got, err := Draft{UseTemplate: true, Content: "code=123456&name=张三"}.Compose(&StoredTemplate{ID: 1, Name: "验证码模板", Content: "您的验证码是{code}，用户{name}"})
	require.NoError(t, err)
	require.Equal(t, "您的验证码是123456，用户张三", got.Text)
	require.True(t, got.UseTemplate)
}

func TestComposeReportsMissingParameters(t *testing.T) {
	t.Parallel()
	tmpl := &StoredTemplate{ID: 1, Name: "t", Content: "{a} {b} {c}"}
	_, err := Draft{UseTemplate: true, Content: "b=1&z=2"}.Compose(tmpl)
	var refusal *Error
	require.ErrorAs(t, err, &refusal)
	require.Len(t, refusal.Fields, 2)
	require.Equal(t, "params.a", refusal.Fields[0].Name)
	require.Equal(t, "params.c", refusal.Fields[1].Name)

	got, err := Draft{UseTemplate: true, Content: "a=1&b=2&c=3&z=4&y=5"}.Compose(tmpl)
	require.NoError(t, err)
	require.Equal(t, []string{"y", "z"}, got.Unused)
}

func TestDraftWithDefault(t *testing.T) {
	t.Parallel()
	d, err := Draft{UseTemplate: true}.WithDefault(&DefaultContent{Content: "plain"})
	require.NoError(t, err)
	require.False(t, d.UseTemplate)
	d, err = Draft{}.WithDefault(&DefaultContent{Content: "code=1", UseTemplate: true})
	require.NoError(t, err)
	require.True(t, d.UseTemplate)
	_, err = Draft{}.WithDefault(nil)
	require.Equal(t, CodeNoDefault, CodeOf(err))
	_, err = Draft{}.WithDefault(&DefaultContent{Sent: true})
	require.Equal(t, CodeDefaultSent, CodeOf(err))
	require.False(t, Draft{Params: map[string]string{}}.NeedsDefault(), "empty params select a template without parameters")
}

func TestComposeUnknownTemplate(t *testing.T) {
	t.Parallel()
	for field, d := range map[string]Draft{
		"template_id":   {UseTemplate: true, TemplateID: 9},
		"template_name": {UseTemplate: true, TemplateName: "x"},
		"use_template":  {UseTemplate: true, Content: "a=1"},
	} {
		_, err := d.Compose(nil)
		var refusal *Error
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, field, refusal.Fields[0].Name)
	}
}
