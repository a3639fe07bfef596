package task

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func keyword(t *testing.T, name string, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{name: map[string]any{"value": value}})
	require.NoError(t, err)
	return raw
}

func TestSubscribeDataKeywordTypes(t *testing.T) {
	t.Parallel()
	for kind, c := range map[string]struct{ good, bad []string }{
		"thing": {
			[]string{"瑜伽课（第2节） A-1!", strings.Repeat("汉", 20), " "},
			[]string{strings.Repeat("汉", 21), strings.Repeat("a", 21), "two\nlines", "a\u2028b"},
		},
		"number": {
			[]string{"0", "339208499", "1.50", strings.Repeat("9", 32)},
			[]string{"1,000", "12a", "1.", ".5", "-1", "1.2.3", "１２", strings.Repeat("9", 33)},
		},
		"letter":           {[]string{"abcXYZ", strings.Repeat("z", 32)}, []string{"a1", "a b", "汉", "é", strings.Repeat("z", 33)}},
		"symbol":           {[]string{"+-*/!", "。"}, []string{"a", "1", "汉", "\n", "!!!!!!"}},
		"character_string": {[]string{"NO-2026/001 #x", strings.Repeat("x", 32)}, []string{"编号1", "a\tb", strings.Repeat("x", 33)}},
		"time": {
			[]string{
				"15:01", "9:05", "15:01:59", "2019年10月1日 15:01", "2019年10月1日15:01", "2026-11-20 08:00:00", "15:01~16:00",
				"2019年10月1日 15:01 ~ 2019年10月2日 15:01", "2019/10/1 15:01~16:00",
			},
			[]string{"2019年10月1日", "25:00", "15:60", "3pm", "15:01-16:00", "15:01~", "15:01~later", "明天 15:01"},
		},
		"date": {
			[]string{
				"2019年10月1日", "2019年10月", "10月1日", "2018-01-01", "2018/01/01", "2018.01.01", "2018-01", "01-01",
				"2019年10月1日 15:01", "2019年10月1日~2019年10月3日", "2019年10月1日 15:01~16:00",
			},
			[]string{"15:01", "2019-13-01", "2019年2月30日", "tomorrow", "2019年10月1日~", "20191001"},
		},
		"amount":       {[]string{"100", "¥100.50", "￥9999999999", "$5", "100.00元", "￥1元"}, []string{"12345678901", "100 元", "¥¥1", "元", "RMB 5", "-5"}},
		"phone_number": {[]string{"13800138000", "+86-0766-66888866"}, []string{"+86-0766-666888866", "call me", "电话1"}},
		"car_number":   {[]string{"粤A8Z888挂", "粤A8Z888", "A1", "粤"}, []string{"粤A8Z8888挂", "粤粤A8", "A-1", "粤A 88"}},
		"name":         {[]string{"张三", "张三·李", strings.Repeat("汉", 10), strings.Repeat("a", 20), "Ann O'Hara"}, []string{strings.Repeat("汉", 11), strings.Repeat("a", 21), "张aaaaaaaaaa", "张3"}},
		"phrase":       {[]string{"配送中", "汉汉汉汉汉"}, []string{"汉汉汉汉汉汉", "ok", "配送!"}},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, value := range c.good {
				require.Empty(t, CheckSubscribeData(keyword(t, kind+"1", value)), "%q", value)
			}
			_, rule := keywordRule(kind)
			for _, value := range c.bad {
				require.Equal(t, []Field{{"message_data." + kind + "1", rule}}, CheckSubscribeData(keyword(t, kind+"1", value)), "%q", value)
			}
		})
	}
}

func TestSubscribeDataUnknownTypes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"const1", "enum2", "site01", "things", "ofTomorrow99", "_"} {
		require.Empty(t, CheckSubscribeData(keyword(t, name, "配送中")), name)
	}
	require.Empty(t, CheckSubscribeData(keyword(t, "const1", strings.Repeat("长\n", 100))))
	require.NotEmpty(t, CheckSubscribeData(keyword(t, "const1", "")))
}

func TestSubscribeDataReportsEveryBadKeyword(t *testing.T) {
	t.Parallel()
	const shape = `must be {"value": ...} with a string or a number (without an exponent) and nothing else`
	require.Equal(t, []Field{
		{"message_data.", "must have a name of letters, digits and _, such as thing1"},
		{"message_data.a b", "must have a name of letters, digits and _, such as thing1"},
		{"message_data.empty1", "must not be empty"},
		{"message_data.exponent1", shape},
		{"message_data.extra1", shape},
		{"message_data.flag1", shape},
		{"message_data.half1", "must not contain NUL, U+FFFD or half of a surrogate pair"},
		{"message_data.list1", shape},
		{"message_data.none1", shape},
		{"message_data.nul1", "must not contain NUL, U+FFFD or half of a surrogate pair"},
		{"message_data.number2", "must be a number without a sign: up to 32 digits and up to 32 decimals"},
		{"message_data.short1", shape},
		{"message_data.typo1", shape},
	}, CheckSubscribeData([]byte(`{
		"thing1": {"value": "good"}, "number1": {"value": 12.50}, "const1": {"value": -3},
		"": {"value": "a"}, "a b": {"value": "a"}, "empty1": {"value": ""}, "exponent1": {"value": 1e3},
		"extra1": {"value": "a", "color": "#fff"}, "flag1": {"value": true}, "half1": {"value": "\ud83d"}, "list1": [{"value": "a"}],
		"none1": null, "nul1": {"value": "\u0000"}, "number2": {"value": "many"}, "short1": "a", "typo1": {"valeu": "a"}
	}`)))
}

func TestSubscribeDataErrors(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "null", "{}", "[]", `"thing1"`, "1", "{", `{"thing1": {"value": "a"}} x`, "{\"thing1\": {\"value\": \"\xff\"}}"} {
		require.Equal(t, []Field{{"message_data", `must be valid UTF-8 and an object such as {"thing1": {"value": "Tea"}}`}}, CheckSubscribeData([]byte(raw)), "%q", raw)
	}
}

func FuzzCheckSubscribeData(f *testing.F) {
	f.Add([]byte(`{"thing1": {"value": "Tea"}, "time2": {"value": "2019年10月1日 15:01~16:00"}}`))
	f.Add([]byte(`{"amount1": {"value": "￥1元"}, "car_number2": {"value": "粤"}, "name3": {"value": 1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		bad := CheckSubscribeData(raw)
		if bad == nil {
			var data map[string]struct{ Value any }
			require.NoError(t, json.Unmarshal(raw, &data))
			require.NotEmpty(t, data)
			for name, keyword := range data {
				require.NotEmpty(t, fmt.Sprint(keyword.Value), name)
			}
		}
	})
}
