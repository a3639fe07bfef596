package task

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestParseParams(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		encoded string
		want    map[string]string
	}{
		{"reads pairs", "code=123456&name=张三", map[string]string{"code": "123456", "name": "张三"}},
		{"decodes escapes of either case", "name=%E5%BC%a0%e4%B8%89", map[string]string{"name": "张三"}},
		{"decodes names", "%6E%61me+1=x", map[string]string{"name 1": "x"}},
		{"reads a plus as a space and its escape as a plus", "a=1+%2B+1", map[string]string{"a": "1 + 1"}},
		{"splits before it decodes", "a=1%262%3D3", map[string]string{"a": "1&2=3"}},
		{"keeps later equal signs", "a=b=c==", map[string]string{"a": "b=c=="}},
		{"keeps the first of a repeated name", "a=1&a=2&%61=3", map[string]string{"a": "1"}},
		{"drops what has no value", "a&b=&&c=1&", map[string]string{"c": "1"}},
		{"keeps the first value that is not empty", "a=&a=2", map[string]string{"a": "2"}},
		{"keeps a value that is one space", "a=+", map[string]string{"a": " "}},
		{"keeps an empty name", "=x", map[string]string{"": "x"}},
		{"does not split at a semicolon", "a=1;b=2", map[string]string{"a": "1;b=2"}},
		{"reads nothing from empty text", "", map[string]string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			params, err := ParseParams(c.encoded)
			require.NoError(t, err)
			require.Equal(t, c.want, params)
		})
	}

	for _, c := range []struct {
		name    string
		encoded string
		wantErr string
	}{
		{"an escape without digits", "rate=50%&a=1", `parameter "rate": malformed escape "%"; for a percent sign write %25`},
		{"an escape with wrong digits", "a=1&b=%zz", `parameter "b": malformed escape "%zz"; for a percent sign write %25`},
		{"an escape cut short", "a=%4", `parameter "a": malformed escape "%4"; for a percent sign write %25`},
		{"an escape in a name", "%g0=1", `malformed escape "%g0"; for a percent sign write %25`},
		{"an escape in a dropped pair", "a=1&%", `malformed escape "%"; for a percent sign write %25`},
		{"an escape in a repeated pair", "a=1&a=%", `parameter "a": malformed escape "%"; for a percent sign write %25`},
		{"an escape that is not UTF-8", "a=%ff", `parameter "a": not valid UTF-8`},
		{"raw bytes that are not UTF-8", "\xff=1", "not valid UTF-8"},
		{"an escaped NUL", "a=1%002", `parameter "a": contains a NUL character`},
	} {
		t.Run("refuses "+c.name, func(t *testing.T) {
			t.Parallel()
			params, err := ParseParams(c.encoded)
			require.EqualError(t, err, c.wantErr)
			require.Nil(t, params)
		})
	}

	t.Run("accepts at most 100 parameters", func(t *testing.T) {
		t.Parallel()
		var pairs []string
		for i := range maxParams {
			pairs = append(pairs, fmt.Sprintf("p%d=1", i))
		}
		params, err := ParseParams(strings.Join(append(pairs, "p0=again", "empty="), "&"))
		require.NoError(t, err)
		require.Len(t, params, maxParams)

		_, err = ParseParams(strings.Join(append(pairs, "more=1"), "&"))
		require.EqualError(t, err, "more than 100 parameters")
	})
}

func TestParamsFromJSON(t *testing.T) {
	t.Parallel()

	t.Run("accepts strings, numbers and booleans", func(t *testing.T) {
		t.Parallel()
		params, bad := ParamsFromJSON(map[string]any{
			"text": " {a} ", "empty": "", "yes": true, "no": false,
			"written": json.Number("1.50"), "large": json.Number("12345678901234567890"),
			"float": 0.1, "whole": float64(123456789012), "negative": -2.5,
		})
		require.Empty(t, bad)
		require.Equal(t, map[string]string{
			"text": " {a} ", "empty": "", "yes": "true", "no": "false",
			"written": "1.50", "large": "12345678901234567890",
			"float": "0.1", "whole": "123456789012", "negative": "-2.5",
		}, params)
	})

	t.Run("returns every bad field, sorted", func(t *testing.T) {
		t.Parallel()
		params, bad := ParamsFromJSON(map[string]any{
			"ok": "1", "list": []any{"a"}, "none": nil, "inner": map[string]any{"a": "b"}, "nul": "\x00", "broken": "\xff", "n\x00": "a",
		})
		require.Nil(t, params)
		require.Equal(t, []Field{
			{"params.broken", "not valid UTF-8"},
			{"params.inner", "must be a string, number or boolean"},
			{"params.list", "must be a string, number or boolean"},
			{"params.n\x00", "contains a NUL character"},
			{"params.none", "must be a string, number or boolean"},
			{"params.nul", "contains a NUL character"},
		}, bad)
	})

	t.Run("accepts at most 100 parameters", func(t *testing.T) {
		t.Parallel()
		object := make(map[string]any)
		for i := range maxParams {
			object[fmt.Sprint(i)] = "1"
		}
		params, bad := ParamsFromJSON(object)
		require.Empty(t, bad)
		require.Len(t, params, maxParams)

		object["more"] = "1"
		params, bad = ParamsFromJSON(object)
		require.Nil(t, params)
		require.Equal(t, []Field{{"params", "must have at most 100 parameters"}}, bad)
	})

	t.Run("refuses values that are too long", func(t *testing.T) {
		t.Parallel()
		params, bad := ParamsFromJSON(map[string]any{"long": strings.Repeat("张", MaxEncoded+1), "number": json.Number(strings.Repeat("1", MaxEncoded+1)), "ok": "1"})
		require.Nil(t, params)
		require.Equal(t, []Field{{"params.long", "must be at most 4000 characters"}, {"params.number", "must be at most 4000 characters"}}, bad)
		_, bad = ParamsFromJSON(map[string]any{"long": strings.Repeat("张", MaxEncoded)})
		require.Empty(t, bad)
	})
}

func FuzzParseParams(f *testing.F) {
	f.Add("code=123456&name=%E5%BC%A0+%zz")
	f.Add("a=&a&=b&%00=1")
	f.Fuzz(func(t *testing.T, encoded string) {
		params, err := ParseParams(encoded)
		require.Equal(t, err != nil, params == nil)
		require.LessOrEqual(t, len(params), maxParams)
		for name, value := range params {
			require.NotEmpty(t, value)
			require.True(t, utf8.ValidString(name+value))
			require.NotContains(t, name+value, "\x00")
		}
	})
}
