package task

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRender(t *testing.T) {
	t.Parallel()
	type params = map[string]string
	for _, c := range []struct {
		name     string
		template string
		params   params
		text     string
		missing  []string
		unused   []string
	}{
		{"fills every placeholder", "您的验证码是{code}，用户{name}", params{"code": "123456", "name": "张三"},
			"您的验证码是123456，用户张三", nil, nil},
		{"fills a repeated placeholder each time", "{a}-{a}", params{"a": "1"}, "1-1", nil, nil},
		{"leaves text without placeholders alone", "Hello", nil, "Hello", nil, nil},
		{"renders the empty template", "", nil, "", nil, nil},
		{"accepts an empty value", "[{a}]", params{"a": ""}, "[]", nil, nil},
		{"keeps braces of a value as text", "{a}{b}", params{"a": "{b}", "b": "{a}"}, "{b}{a}", nil, nil},
		{"lists missing names once, as they appear", "{z}{a}{z}{b}", params{"a": "1"}, "{z}1{z}{b}", []string{"z", "b"}, nil},
		{"lists unused parameters sorted", "{b}", params{"b": "1", "z": "2", "a": "3", "": "4"}, "1", nil, []string{"", "a", "z"}},
		{"takes names as written", "{ a }{A}{a.b}{名}", params{" a ": "1", "A": "2", "a.b": "3", "名": "4"}, "1234", nil, nil},
		{"distinguishes names by case", "{Code}", params{"code": "1"}, "{Code}", []string{"Code"}, []string{"code"}},
		{"fills the inner pair of doubled braces", "{{a}}", params{"a": "1"}, "{1}", nil, nil},
		{"fills after an unmatched brace", "{x {a}", params{"a": "1"}, "{x 1", nil, nil},
		{"keeps unmatched braces", "a} {b", params{"b": "1"}, "a} {b", nil, []string{"b"}},
		{"keeps empty braces", "{}{a}", params{"a": "1", "": "2"}, "{}1", nil, []string{""}},
		{"keeps closing braces", "{a}}", params{"a": "1"}, "1}", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text, missing, unused := ParseTemplate(c.template).Render(c.params)
			require.Equal(t, c.text, text)
			require.Equal(t, c.missing, missing)
			require.Equal(t, c.unused, unused)
		})
	}
}

func TestRenderIsBounded(t *testing.T) {
	t.Parallel()
	params := map[string]string{"v": strings.Repeat("\u2028", MaxEncoded), "x": "1"}
	template := ParseTemplate("a" + strings.Repeat("{v}", 64) + "{missing}")
	text, missing, unused := template.Render(params)
	require.Equal(t, "a"+strings.Repeat("\u2028", maxRendered-1), text)
	require.Equal(t, []string{"missing"}, missing)
	require.Equal(t, []string{"x"}, unused)
	require.LessOrEqual(t, len(template.fill(params)), 2*len(params["v"]), "most of the text is not built")
}

func TestTemplateNames(t *testing.T) {
	t.Parallel()
	template := ParseTemplate("{b}{a}{b}{}")
	names := template.Names()
	require.Equal(t, []string{"b", "a"}, names)

	names[0] = "changed"
	require.Equal(t, []string{"b", "a"}, template.Names())
	require.Empty(t, Template{}.Names())
}

func FuzzRender(f *testing.F) {
	f.Add("您的验证码是{code}，用户{name}", "123456")
	f.Add("{{a}}{}}{", "{a}")
	f.Fuzz(func(t *testing.T, content, value string) {
		template := ParseTemplate(content)
		unfilled, missing, unused := template.Render(nil)
		require.Equal(t, Cut(content, maxRendered), unfilled)
		require.Equal(t, template.Names(), missing)
		require.Empty(t, unused)

		params := make(map[string]string)
		var pairs []string
		for _, name := range template.Names() {
			require.NotEmpty(t, name)
			require.False(t, strings.ContainsAny(name, "{}"))
			params[name] = value
			pairs = append(pairs, "{"+name+"}", value)
		}
		text, missing, unused := template.Render(params)
		require.Equal(t, Cut(strings.NewReplacer(pairs...).Replace(content), maxRendered), text)
		require.Empty(t, missing)
		require.Empty(t, unused)
	})
}
