package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInvalidIDsAreNotFound(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, id := range []string{"0", "-1", "007", "+1", "1.0", "x", "2147483648", "9223372036854775808", "%00", "%27%20or%201=1", "1e3"} {
		s.requireError(404, "not_found", nil, "GET", "template/"+id, "")
		s.requireError(404, "not_found", nil, "POST", "template/"+id+"/activate", "")
		s.requireError(404, "not_found", nil, "PUT", "default-sms/"+id, `{"content":"x"}`)
		s.requireError(404, "not_found", nil, "DELETE", "blocked-words/"+id, "")
		s.requireError(404, "not_found", nil, "POST", "callers/"+id+"/revoke", "")
		s.requireError(404, "not_found", nil, "POST", "dead-letters/"+id+"/dismiss", `{"reason":"x"}`)
		s.requireError(404, "not_found", nil, "POST", "tasks/"+id+"/retry", "")
		s.requireError(404, "not_found", nil, "GET", "tasks/"+id, "")
	}
}

func TestInvalidTextsAndNumbersAreRefused(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	routes := map[string]map[string]string{ // route -> field -> other required fields
		"template":         {"template_name": `"template_content":"c"`, "template_content": `"template_name":"n"`},
		"template/preview": {"template_content": `"content":""`, "content": `"template_content":"c"`},
		"default-sms":      {"content": `"phone_number":"13900000001"`, "phone_number": `"content":"x"`},
		"blocked-words":    {"word": ""},
		"callers":          {"name": `"roles":["sender"]`},
	}
	values := map[string]bool{ // JSON value -> whether some field accepts it
		`""`: false, `"\u0000"`: false, `"a\u0000b"`: false, `"\ud800"`: false, `9223372036854775808`: false, `[]`: false, `{}`: false, `true`: false,
		`"` + strings.Repeat("字", 201) + `"`: false, `"` + strings.Repeat("😀", 200) + `"`: true, `"'; drop table tasks; --"`: true, `"😀"`: true, `"\u202e"`: true,
	}
	for route, fields := range routes {
		for field, rest := range fields {
			for value, acceptable := range values {
				body := "{" + strings.Trim(fmt.Sprintf(`%q:%s,%s`, field, value, rest), ",") + "}"
				r := s.call("POST", route, body)
				switch {
				case r.Status == 400:
					require.Contains(t, r.Fields(), field, body)
				case route == "template/preview" && field == "content":
					require.Equal(t, 200, r.Status, body)
				default:
					require.True(t, acceptable, "%s accepted %s", route, body)
					require.Contains(t, []int{200, 409}, r.Status, "%s %s: %s", route, body, r.Text)
				}
			}
		}
	}
	for _, query := range []string{"template?after=9223372036854775808", "template?after=-1", "callers?limit=0", "blocked-words?limit=201", "actions?limit=9223372036854775808",
		"actions?subject=%00", "tasks?phone_number=%00", "tasks?source=%FF", "tasks?caller_id=9223372036854775808", "tasks?from=yesterday", "default-sms?is_sent=maybe", "statistics?x=1"} {
		require.Equal(t, 400, s.call("GET", query, "").Status, query)
	}
	for _, query := range []string{"tasks?source=%27%20or%201=1", "tasks?from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z", "template?after=9223372036854775807",
		"actions?after=9223372036854775807", "actions?subject=😀", "tasks?caller_id=9223372036854775807"} {
		require.Equal(t, 200, s.call("GET", query, "").Status, query)
	}
}
