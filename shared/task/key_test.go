package task

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidKey(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"a", "order:42", "A-Z_0.9", "8e03978e-40d5-43e8-bc93-6894a57f9324", strings.Repeat("k", 255)} {
		require.True(t, ValidKey(s), "%q", s)
	}
	for _, s := range []string{"", " ", "a b", "a/b", "a\n", "é", "键", "a\x00", `"a"`, strings.Repeat("k", 256)} {
		require.False(t, ValidKey(s), "%q", s)
	}
}

func FuzzValidKey(f *testing.F) {
	pattern := regexp.MustCompile(`^[A-Za-z0-9._:-]{1,255}$`)
	f.Add("order:42")
	f.Add("a b")
	f.Add("..")
	f.Fuzz(func(t *testing.T, s string) {
		require.Equal(t, pattern.MatchString(s) && s != "." && s != "..", ValidKey(s))
	})
}

func TestKeyHash(t *testing.T) {
	t.Parallel()

	t.Run("stored format is unchanged", func(t *testing.T) {
		t.Parallel()
		sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x03sms\x00\x00\x00\x00\x00\x00\x00\x08order:42"))
		require.Equal(t, Hash(sum[:16]), KeyHash(7, "sms", "order:42"))
	})

	t.Run("different arguments, different hash", func(t *testing.T) {
		t.Parallel()
		hashes := map[Hash]bool{
			KeyHash(1, "sms", "a"): true, KeyHash(2, "sms", "a"): true, KeyHash(-1, "sms", "a"): true, KeyHash(1, "subscribe", "a"): true,
			KeyHash(1, "sms", "b"): true, KeyHash(1, "smsa", ""): true, KeyHash(1, "", "smsa"): true, KeyHash(1, "sm", "sa"): true,
		}
		require.Len(t, hashes, 8)
	})
}

// decodeJSON decodes the first JSON value of body, with numbers as json.Number. end is the offset after the value.
func decodeJSON(body string) (v any, end int64, err error) {
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	err = decoder.Decode(&v)
	return v, decoder.InputOffset(), err
}

func fingerprintOf(t *testing.T, body string) Hash {
	t.Helper()
	v, _, err := decodeJSON(body)
	require.NoError(t, err)
	h, err := Fingerprint(v)
	require.NoError(t, err)
	return h
}

func TestFingerprint(t *testing.T) {
	t.Parallel()

	for _, c := range []struct{ name, a, b string }{
		{"key order", `{"a":1,"b":2}`, `{"b":2,"a":1}`},
		{"key order inside arrays and objects", `{"m":{"x":[{"a":1,"b":2}],"y":0}}`, `{"m":{"y":0,"x":[{"b":2,"a":1}]}}`},
		{"white space", `{"a":[1,2]}`, "\n{ \"a\" :\t[ 1 , 2 ] }"},
		{"escaping", `{"张":"é<&>/😀\t\u2028"}`, `{"\u5f20":"\u00e9\u003c\u0026\u003e\/\ud83d\ude00\u0009\u2028"}`},
		{"null members", `{"a":1,"b":null,"c":{"d":null}}`, `{"a":1,"c":{}}`},
	} {
		t.Run("ignores "+c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, fingerprintOf(t, c.a), fingerprintOf(t, c.b))
		})
	}

	for _, c := range []struct{ name, a, b string }{
		{"values", `{"a":1}`, `{"a":2}`},
		{"names", `{"a":1}`, `{"b":1}`},
		{"upper and lower case in names", `{"a":1}`, `{"A":1}`},
		{"the notation of a number", `{"a":1}`, `{"a":1.0}`},
		{"digits beyond float64 precision", `{"a":9007199254740993}`, `{"a":9007199254740992}`},
		{"number or string", `{"a":1}`, `{"a":"1"}`},
		{"boolean or string", `{"a":true}`, `{"a":"true"}`},
		{"true or false", `{"a":true}`, `{"a":false}`},
		{"the order of an array", `{"a":[1,2]}`, `{"a":[2,1]}`},
		{"null in an array", `{"a":[1,null]}`, `{"a":[1]}`},
		{"whether a member is empty or missing", `{"a":""}`, `{}`},
		{"nesting", `{"a":{"b":1},"c":2}`, `{"a":{"b":1,"c":2}}`},
		{"escaped quotes", `{"a":"1\",\"b\":\"2"}`, `{"a":"1","b":"2"}`},
		{"escaped backslashes", `{"a":"\\u0001"}`, `{"a":"\u0001"}`},
		{"Unicode normalization", "{\"a\":\"\u00e9\"}", "{\"a\":\"e\u0301\"}"},
	} {
		t.Run("depends on "+c.name, func(t *testing.T) {
			t.Parallel()
			require.NotEqual(t, fingerprintOf(t, c.a), fingerprintOf(t, c.b))
		})
	}

	t.Run("stored format is unchanged", func(t *testing.T) {
		t.Parallel()
		sum := sha256.Sum256([]byte(`{"":[],"a":[1.0,null,true,{}],"b":"\"\\\u0008\u0009\u001f<` + "\u2028\x7f" + `😀"}`))
		got := fingerprintOf(t, `{"b":"\"\\\b\t\u001f<\u2028`+"\x7f"+`😀","a":[1.0,null,true,{"z":null}],"":[]}`)
		require.Equal(t, Hash(sum[:16]), got)
	})

	t.Run("ignores field order and omitted fields of structs", func(t *testing.T) {
		t.Parallel()
		type oldRequest struct {
			Phone string          `json:"phone_number"`
			Meta  json.RawMessage `json:"metadata,omitempty"`
			Text  *string         `json:"content"`
		}
		type newRequest struct {
			New   *int           `json:"new,omitempty"`
			Text  string         `json:"content,omitempty"`
			Meta  map[string]any `json:"metadata,omitempty"`
			Phone string         `json:"phone_number"`
		}
		a, err := Fingerprint(oldRequest{Phone: "110", Meta: json.RawMessage(`{"b": "\u003c", "a": 1}`)})
		require.NoError(t, err)
		b, err := Fingerprint(&newRequest{Phone: "110", Meta: map[string]any{"a": json.Number("1"), "b": "<"}})
		require.NoError(t, err)
		require.Equal(t, a, b)
	})

	t.Run("returns the error of encoding as JSON", func(t *testing.T) {
		t.Parallel()
		_, err := Fingerprint(map[string]any{"a": math.Inf(1)})
		require.ErrorContains(t, err, "fingerprint: json: unsupported value")
	})
}

func FuzzFingerprint(f *testing.F) {
	f.Add(`{"phone_number":"110","params":{"b":1,"a":[null,true]}}`)
	f.Add(`["\u0000\ud800", 1e400]`)
	f.Add(`{"a":{"\u0061":1,"b":[{}],"b":null},"a":[[],"]}",{"x\"":-1.50}],"":"\\"}`)
	f.Add(` 12 `)
	f.Fuzz(func(t *testing.T, body string) {
		v, length, err := decodeJSON(body)
		if err != nil {
			t.Skip("not JSON")
		}
		canonical := canonicalForm(v)
		require.True(t, json.Valid([]byte(canonical)))
		for _, equivalent := range []any{v, json.RawMessage(canonical), json.RawMessage(body[:length])} {
			got, err := Fingerprint(equivalent)
			require.NoError(t, err)
			require.Equal(t, hashOf([]byte(canonical)), got, canonical)
		}
	})
}

// canonicalForm is a simpler implementation of the canonical JSON that Fingerprint hashes.
func canonicalForm(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var members []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if v[name] != nil {
				members = append(members, canonicalForm(name)+":"+canonicalForm(v[name]))
			}
		}
		return "{" + strings.Join(members, ",") + "}"
	case []any:
		var elements []string
		for _, element := range v {
			elements = append(elements, canonicalForm(element))
		}
		return "[" + strings.Join(elements, ",") + "]"
	case string:
		return string(appendQuoted(nil, []byte(v)))
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
