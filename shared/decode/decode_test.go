package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

type shape struct {
	Text   string            `json:"text"`
	Maybe  *string           `json:"maybe"`
	Flag   bool              `json:"flag"`
	Count  int               `json:"count"`
	Tiny   int8              `json:"tiny"`
	At     time.Time         `json:"at"`
	Raw    json.RawMessage   `json:"raw"`
	Any    any               `json:"any"`
	Data   map[string]any    `json:"data"`
	Labels map[string]string `json:"labels"`
	Words  []string          `json:"words"`
	Inner  inner             `json:"inner"`
	Items  []inner           `json:"items"`
	Hidden string            `json:"-"`
	embedded
}

type embedded struct {
	Outer string `json:"outer"`
}

type inner struct {
	Phone string `json:"phone_number"`
	Next  *inner `json:"next"`
}

func (s *shape) Validate() []task.Field {
	var bad []task.Field
	if len(s.Text) > 200 {
		bad = append(bad, task.Field{Name: "text", Message: "must have at most 200 characters"})
	}
	if s.Count < 0 {
		bad = append(bad, task.Field{Name: "count", Message: "must not be negative"})
	}
	if s.Inner.Phone == "" && s.Inner.Next != nil {
		bad = append(bad, task.Field{Name: "inner", Message: "needs a phone number"})
	}
	return bad
}

func decodeShape(raw string) (shape, []task.Field) {
	var s shape
	if err := Object([]byte(raw), &s); err != nil {
		return s, err.Fields
	}
	return s, nil
}

func TestObjectDecodesAsEncodingJSON(t *testing.T) {
	t.Parallel()
	raw := ` {"text":"您的<验证码>\n\u4f60\ud83d\ude00\/\"", "maybe":"", "flag":true, "count":12, "tiny":127,
		"at":"2023-12-01T10:00:00Z", "raw": {"a": [1, null]},
		"any":["x",1.0,1e400,true,null,{}], "data":{"a":{"b":9007199254740993}, "n":null}, "labels":{"k":"v","none":null},
		"words":[], "inner":{"phone_number":"138"}, "items":[{"phone_number":"139","next":{"next":null}}], "outer":"o"}  `
	got, bad := decodeShape(raw)
	require.Empty(t, bad)
	var want shape
	standard := json.NewDecoder(strings.NewReader(raw))
	standard.UseNumber()
	require.NoError(t, standard.Decode(&want))
	require.Equal(t, want, got)
	require.Equal(t, json.Number("9007199254740993"), got.Data["a"].(map[string]any)["b"])
}

func TestObjectNamesEveryBadField(t *testing.T) {
	t.Parallel()
	_, bad := decodeShape(`{"text":1,"maybe":[],"flag":"yes","count":1.5,"tiny":300,"at":"yesterday",
		"data":[],"labels":{"a":1,"b":"x","b":"y"},"words":["a",null,3],"inner":"x","items":[{},{"phone_number":7,"Phone_number":"1"}],
		"TEXT":"x","flag":false,"nope":{"deep":[1,"]}"]}}`)
	require.Equal(t, []task.Field{
		{Name: "text", Message: "must be a string"},
		{Name: "maybe", Message: "must be a string"},
		{Name: "flag", Message: "must be true or false"},
		{Name: "count", Message: "must be an integer"},
		{Name: "tiny", Message: "must be an integer between -128 and 127"},
		{Name: "at", Message: badTime},
		{Name: "data", Message: "must be an object"},
		{Name: "labels.a", Message: "must be a string"},
		{Name: "labels.b", Message: "is given twice"},
		{Name: "words[1]", Message: "must be a string"},
		{Name: "words[2]", Message: "must be a string"},
		{Name: "inner", Message: "must be an object"},
		{Name: "items[1].phone_number", Message: "must be a string"},
		{Name: "items[1].Phone_number", Message: "is not a known field"},
		{Name: "TEXT", Message: "is not a known field"},
		{Name: "nope", Message: "is not a known field"},
	}, bad)
}

func TestObjectDescribesTheBadValue(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]task.Field{
		``:                                {Name: "body", Message: "must be a JSON object, it is empty"},
		`null`:                            {Name: "body", Message: "must be a JSON object"},
		`[]`:                              {Name: "body", Message: "must be a JSON object"},
		`"x"`:                             {Name: "body", Message: "must be a JSON object"},
		`{"text":"a"`:                     {Name: "body", Message: "is not valid JSON at byte 11: unexpected end of JSON input"},
		`{"text":"a"} {}`:                 {Name: "body", Message: "is not valid JSON at byte 14: invalid character '{' after top-level value"},
		`{"text":'a'}`:                    {Name: "body", Message: "is not valid JSON at byte 9: invalid character '\\'' looking for beginning of value"},
		"\xef\xbb\xbf{}":                  {Name: "body", Message: "is not valid JSON at byte 1: invalid character 'ï' looking for beginning of value"},
		`{"count":9223372036854775808}`:   {Name: "count", Message: "must be an integer between -9223372036854775808 and 9223372036854775807"},
		`{"count":1e2}`:                   {Name: "count", Message: "must be an integer"},
		`{"text":"a\u0000b"}`:             {Name: "text", Message: badText},
		`{"text":"\ud800"}`:               {Name: "text", Message: badText},
		`{"text":"\ud800\ud800\udc00"}`:   {Name: "text", Message: badText},
		`{"text":"\udc00\ud800"}`:         {Name: "text", Message: badText},
		`{"text":"\uD83Dx\uDE00"}`:        {Name: "text", Message: badText},
		`{"maybe":"\ud83d"}`:              {Name: "maybe", Message: badText},
		`{"at":"\ud83d"}`:                 {Name: "at", Message: badText},
		"{\"text\":\"\xff\"}":             {Name: "text", Message: badUTF8},
		`{"words":["a","\u0000"]}`:        {Name: "words[1]", Message: badText},
		`{"items":[{"next":{"next":1}}]}`: {Name: "items[0].next.next", Message: "must be an object"},
		`{"raw":{"a":["\ud800"]}}`:        {Name: "raw", Message: badText},
		`{"raw":{"\u0000":1}}`:            {Name: "raw", Message: badText},
		`{"any":{"a":["\ud800"]}}`:        {Name: "any.a[0]", Message: badText},
		`{"data":{"a\ud800":1}}`:          {Name: "data.a\uFFFD", Message: badText},
		`{"labels":{"a":"\u0000"}}`:       {Name: "labels.a", Message: badText},
		`{"":1}`:                          {Name: `""`, Message: "is not a known field"},
		`{"te\u0000xt":1}`:                {Name: "te\uFFFDxt", Message: "is not a known field"},
		`{"text":"a","te\u0078t":"b"}`:    {Name: "text", Message: "is given twice"},
		`{"text":null,"text":"b"}`:        {Name: "text", Message: "is given twice"},
		`{"Hidden":"x"}`:                  {Name: "Hidden", Message: "is not a known field"},
		`{"13800138000":"x"}`:             {Name: "138****8000", Message: "is not a known field"},
	} {
		_, bad := decodeShape(raw)
		require.Equal(t, []task.Field{want}, bad, "%q", raw)
	}
}

func TestNullCountsAsAbsent(t *testing.T) {
	t.Parallel()
	s, bad := decodeShape(`{"text":null,"maybe":null,"flag":null,"count":null,"at":null,"raw":null,"any":null,"data":null,"words":null,"inner":null,"items":null}`)
	require.Empty(t, bad)
	require.Equal(t, shape{}, s)
}

func TestNestingIsLimited(t *testing.T) {
	t.Parallel()
	nested := func(field string, n int) string {
		return `{"` + field + `":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for _, field := range []string{"any", "raw"} {
		_, bad := decodeShape(nested(field, maxDepth-1))
		require.Empty(t, bad, field)
		_, bad = decodeShape(nested(field, maxDepth))
		require.Len(t, bad, 1, field)
		require.Equal(t, tooDeep, bad[0].Message)
	}
	_, bad := decodeShape(`{"inner":` + strings.Repeat(`{"next":`, 500) + `{}` + strings.Repeat(`}`, 501))
	require.Len(t, bad, 1)
	require.Equal(t, tooDeep, bad[0].Message)
	_, bad = decodeShape(nested("any", 20_000))
	require.Len(t, bad, 1, "nesting that is too deep for encoding/json makes the whole body bad")
	require.Equal(t, "body", bad[0].Name)
}

func TestObjectAddsTheResultOfValidate(t *testing.T) {
	t.Parallel()
	_, bad := decodeShape(`{"text":"` + strings.Repeat("x", 201) + `","count":-1,"flag":7}`)
	require.Equal(t, []task.Field{
		{Name: "flag", Message: "must be true or false"},
		{Name: "text", Message: "must have at most 200 characters"},
		{Name: "count", Message: "must not be negative"},
	}, bad)
	t.Run("except for fields that were not decoded", func(t *testing.T) {
		t.Parallel()
		_, bad := decodeShape(`{"count":-1,"count":-2,"inner":{"phone_number":1,"next":{}}}`)
		require.Equal(t, []task.Field{
			{Name: "count", Message: "is given twice"},
			{Name: "inner.phone_number", Message: "must be a string"},
		}, bad)
	})
}

func TestTheNumberOfBadFieldsIsLimited(t *testing.T) {
	t.Parallel()
	var raw strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&raw, `,"f%d":1`, i)
	}
	_, bad := decodeShape("{" + raw.String()[1:] + "}")
	require.Len(t, bad, maxFields+1)
	require.Equal(t, task.Field{Name: "body", Message: "has further bad fields"}, bad[maxFields])

	_, bad = decodeShape(`{"` + strings.Repeat("长", 5000) + `":1}`)
	require.Equal(t, strings.Repeat("长", 64), bad[0].Name)
}

func TestDecodedValuesDoNotAffectEachOther(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"text":"first","raw":{"a":1},"words":["w"]}`)
	var first, second shape
	require.Nil(t, Object(raw, &first))
	require.Equal(t, "first", first.Text)
	require.JSONEq(t, `{"a":1}`, string(first.Raw))
	_ = append(first.Raw, "and more"...)
	require.Contains(t, string(raw), `{"a":1},"words"`, "a raw value cannot grow into the bytes after it")
	require.Equal(t, []string{"w"}, first.Words)
	require.Nil(t, Object([]byte(`{}`), &second))
	require.Equal(t, shape{}, second)
}

func TestPlanOfPanicsForATypeThatCannotBeDecoded(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { PlanOf[struct{ C chan int }]() })
	require.Panics(t, func() { PlanOf[struct{ M map[int]string }]() })
	require.Panics(t, func() { PlanOf[struct{ E error }]() })
	require.Panics(t, func() { PlanOf[struct{ U uint }]() })
	require.Panics(t, func() { PlanOf[struct{ F float64 }]() })
	require.Panics(t, func() { PlanOf[struct{ N json.Number }]() })
	require.Panics(t, func() { PlanOf[struct{ A netip.Addr }]() }, "an encoding.TextUnmarshaler")
	require.Panics(t, func() {
		PlanOf[struct {
			N int `json:"n,string"`
		}]()
	})
	require.Panics(t, func() {
		PlanOf[struct {
			A int
			B int `json:"A"`
		}]()
	})
	require.Panics(t, func() { PlanOf[string]() })
}

// An error must not copy a long name, which may be as long as the body. Not parallel: the test measures the memory of
// the process.
func TestLongUnknownFieldNeedsNoFurtherMemory(t *testing.T) {
	raw := []byte(`{"` + strings.Repeat("::1 ", 1<<20) + `":1}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var s shape
	err := Object(raw, &s)
	runtime.ReadMemStats(&after)
	require.Len(t, err.Fields[0].Name, maxName)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*len(raw)))
}

// badNumber is the error of api.Number.
const badNumber = "must be an integer between 0 and 18446744073709551615, as digits in a string or as a number without fraction and exponent"

func TestUnmarshalerReadsFieldItself(t *testing.T) {
	t.Parallel()
	var got struct {
		ID    api.Number `json:"id"`
		Other api.Number `json:"other"`
	}
	require.Nil(t, Object([]byte(`{"id":9007199254740993,"other":"7"}`), &got))
	require.Equal(t, api.Number("9007199254740993"), got.ID)
	err := Object([]byte(`{"id":[1],"other":"\u0000"}`), &got)
	require.Equal(t, []task.Field{
		{Name: "id", Message: badNumber},
		{Name: "other", Message: badText},
	}, err.Fields)
}

func TestParametersFillEveryKindOfScalar(t *testing.T) {
	t.Parallel()
	var s shape
	plan := PlanOf[shape]()
	require.Nil(t, plan.Parameters(Request{Query: "text=a%26b&maybe=&flag=0&tiny=-1&at=2023-12-01T10:00:00Z&outer=o"}, &s))
	require.Equal(t, shape{Text: "a&b", Maybe: new(string), Tiny: -1,
		At: time.Date(2023, 12, 1, 10, 0, 0, 0, time.UTC), embedded: embedded{Outer: "o"}}, s)
	s = shape{}
	bad := plan.Parameters(Request{Query: "count=&tiny=007&at=now&words=a&inner=b&data=c"}, &s)
	require.Equal(t, []task.Field{
		{Name: "at", Message: badTime},
		{Name: "count", Message: "must be an integer"},
		{Name: "data", Message: "cannot be given in the query string"},
		{Name: "inner", Message: "cannot be given in the query string"},
		{Name: "tiny", Message: "must be an integer"},
		{Name: "words", Message: "cannot be given in the query string"},
	}, bad.Fields)
}

// FuzzObjectAcceptsNoMoreThanEncodingJSON also compares the decoded values.
func FuzzObjectAcceptsNoMoreThanEncodingJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { "text" : "a" , "count" : 1 } `, `{"text":"\ud83d\ude00\u0041\\\"\/\b\f\n\r\t"}`, `{"any":[1,{"a":null}],"raw":[[]]}`,
		`{"items":[{"phone_number":"1","next":{}}],"labels":{"a":"b"}}`, `{"at":"2023-12-01T10:00:00Z","any":-0.0e+1}`,
		`{"text":"\ud800"}`, "{\"text\":\"\xc3\x28\"}", `{"tiny":-129}`, `{"count":1,"count":2}`, `{"data":{"":[]}}`, `[`, `{"a":`, `nul`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		var got, want shape
		err := Object(raw, &got)
		require.Equal(t, before, raw, "the input is not written to")
		if err != nil {
			require.NotEmpty(t, err.Fields)
			for _, bad := range err.Fields {
				require.NotEmpty(t, bad.Message)
			}
			return
		}
		standard := json.NewDecoder(bytes.NewReader(raw))
		standard.UseNumber()
		standard.DisallowUnknownFields()
		require.NoError(t, standard.Decode(&want))
		// null is absent here; encoding/json keeps it in a RawMessage.
		if string(want.Raw) == "null" {
			want.Raw = nil
		}
		require.True(t, reflect.DeepEqual(want, got), "%q: %#v, encoding/json: %#v", raw, got, want)
	})
}

func TestTextWithTheTagAnyIsRepaired(t *testing.T) {
	t.Parallel()
	type shape struct {
		Any string `json:"any" text:"any"`
	}
	for raw, want := range map[string]string{
		`{"any":"plain 中"}`:       "plain 中",
		`{"any":"a\u0000b"}`:      "a\uFFFDb",
		`{"any":"a\ud800b"}`:      "a\uFFFDb",
		"{\"any\":\"a\xffb\\n\"}": "a\uFFFDb\n",
		`{"any":null}`:            "",
	} {
		var dst shape
		require.Nil(t, Object([]byte(raw), &dst), raw)
		require.Equal(t, want, dst.Any, raw)
	}
	require.Equal(t, []task.Field{{Name: "any", Message: "must be a string"}}, Object([]byte(`{"any":1}`), new(shape)).Fields)
}

func TestEmptyTextIsRefusedWithTheTagSome(t *testing.T) {
	t.Parallel()
	type shape struct {
		Key  string `json:"key" text:"some"`
		Text string `json:"text"`
	}
	for raw, want := range map[string]string{
		`{"key":"a","text":""}`: "", `{"key":null}`: "", `{}`: "",
		`{"key":""}`:       "must not be empty; leave it out for none",
		`{"key":1}`:        "must be a string",
		`{"key":"\u0000"}`: "must not contain NUL or unpaired surrogates",
	} {
		err := Object([]byte(raw), new(shape))
		if want == "" {
			require.Nil(t, err, raw)
			continue
		}
		require.Equal(t, []task.Field{{Name: "key", Message: want}}, err.Fields, raw)
	}
}

func TestElementsOverTheLimitAreNotDecoded(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"words":["a"`)
	for range 100_000 {
		raw = append(raw, `,"a"`...)
	}
	s, bad := decodeShape(string(append(raw, `]}`...)))
	require.Equal(t, []task.Field{{Name: "words", Message: tooMany}}, bad)
	require.Len(t, s.Words, maxElements)
}
