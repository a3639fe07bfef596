package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/fn"
)

var wildcard = regexp.MustCompile(`\{[^}]*\}`)

// addresses returns the path of a route with each id and each button in place of the wildcards.
func addresses(path string, ids, buttons []string) (all []string) {
	for _, id := range ids {
		for _, button := range buttons {
			address := wildcard.ReplaceAllLiteralString(strings.ReplaceAll(path, "{do}", button), id)
			if !slices.Contains(all, address) {
				all = append(all, address)
			}
		}
	}
	return all
}

// Forms and addresses with invalid values cause no error 5xx. Each problem that a page shows is translated.
func TestPagesRefuseGarbage(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"a","template_content":"a {b}"}`)
	s.Post("/api/v1/admin/default-sms", `{"phone_number":"13800138000","content":"x"}`)
	s.Post("/api/v1/admin/blocked-words", `{"word":"bad"}`)
	s.NewCaller("shop", "submitter")
	task := s.SubmitTo("otp")
	s.Exec(deadLetterSQL, "e", "{}", "r")
	env, _ := cluster.NewEnv(t, "postgres://nobody@127.0.0.1:1/none")
	patterns, err := fn.PagePatterns(env, functions.Catalogue()...)
	require.NoError(t, err)

	fields := []string{"form", "queue", "reason", "until", "template_name", "template_id", "template_content", "params", "content", "phone_number", "use_template", "word", "name", "roles", "queues",
		"business_types", "receives", "max_waiting_tasks", "best_priority", "confirm", "idempotency_key", "send_at", "outcome", "url", "events", "after", "limit", "subject", "q", "active", "is_sent", "state", "from", "since", "query", "expected", "count"}
	values := []string{"", "\x00", "\xff\xfe", "../../etc", "9999999999999999999999", "-1", "1e400d", "%zz", "=\n=\n==", "from=\x00", "from=2026-01-31T08:00:00%2B24:00", "2026-01-31T08:00:00+24:00", strings.Repeat("长", 700)} // with this value in all fields, a form is almost as large as it may be
	forms := make([]string, len(values))
	for i, value := range values {
		form := url.Values{}
		for _, field := range fields {
			form.Add(field, value)
		}
		forms[i] = form.Encode()
	}
	buttons := []string{"x", "preview", "activate", "deactivate", "reset", "delete", "retry", "cancel", "resolve", "reveal"}
	ids := []string{"1", task, "%00", "%FF", "..%2F..%2Fapi", "99999999999999999999", url.PathEscape(hostile)}
	b := logIn(t, s)
	b.submit("/console/language", "language", "zh") // to find problems without a translation
	problem := regexp.MustCompile(`<(?:span class="wrong"|p class="problem"[^>]*|div class="problem"[^>]*><p)>([^<]*)<`)
	tried, problems := 0, map[string]bool{}
	for _, pattern := range patterns {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.HasPrefix(path, "/console/") || path == "/console/login" || path == "/console/logout" {
			continue
		}
		for i, target := range addresses(path, ids, buttons) {
			for j, value := range values {
				if i > 0 && j != i%len(values) {
					continue // the first address is tried with all values, each other address with one
				}
				address, form := target, forms[j]
				if method == http.MethodGet {
					if len(value) > 1000 {
						continue
					}
					address, form = address+"?"+form, ""
				}
				got := b.do(method, address, form)
				require.NotEqual(t, http.StatusRequestEntityTooLarge, got.status, address)
				tried++
				require.Less(t, got.status, 500, "%s %s with %.20q:\n%s", method, address, value, got.text)
				for _, found := range problem.FindAllStringSubmatch(got.text, -1) {
					problems[found[1]] = true
				}
			}
		}
	}
	require.Greater(t, tried, 300)
	require.Zero(t, s.Count(`select count(*) from callers where revoked_at is not null`))
	require.Greater(t, len(problems), 20)
	for text := range problems {
		assert.Regexp(t, `\p{Han}`, text)
	}
}
