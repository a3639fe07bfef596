package console_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// Pages show texts of callers as text, and such texts do not make a page wider than a phone.
func TestHostileTextsFitThePages(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	text := func(n int) string {
		long := []rune(hostile + strings.Repeat("W", n))[:n]
		quoted, err := json.Marshal(string(long))
		require.NoError(t, err)
		return string(quoted)
	}
	name := strings.Repeat("q", 63)
	for _, call := range [][2]string{
		{"template", `{"template_name":` + text(100) + `,"template_content":` + text(200) + `}`},
		{"default-sms", `{"phone_number":"13800138000","content":` + text(200) + `}`},
		{"blocked-words", `{"word":` + text(100) + `}`},
		{"queues/" + name + "/pause", `{"reason":` + text(500) + `}`},
		{"callers", fmt.Sprintf(`{"name":%q,"roles":["submitter","sender","receiver","viewer"],"queues":[%q],"business_types":[%s],"receives":["msg.%s.>"]}`, name[:50], name, text(50), name)},
	} {
		s.Post("/api/v1/admin/"+call[0], call[1]).RequireOK()
	}
	s.Exec(deadLetterSQL, strings.Repeat("e", 255), `{"a":`+text(5000)+`}`, strings.Repeat("r", 255))
	s.Exec(`insert into alerts (id, kind, queue, value, threshold) values (gen_random_uuid(), 'backlog', $1, 1e15, 1e15)`, name)
	b := openTab(t, s)
	b.logIn(s)
	for _, path := range []string{"queues", "templates", "templates/1", "default-sms", "default-sms/1", "blocked-words", "callers", "callers/1", "alerts", "audit", "send", "dead-letters"} {
		b.requireFitsEverywhere("/console/" + path)
	}
	b.resizeToPhone()
	b.click(`details summary`, `pre`)
	b.requireFits()
	b.requireNoBrowserErrors()
}
