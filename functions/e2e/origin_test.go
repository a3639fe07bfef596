package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/fn"
)

// changedByGET are the GET routes that change something.
var changedByGET = []string{"GET /api/v1/sms/tasks/pending"}

// A browser sends the credentials that it has kept with every request, whichever
// page makes it.
func TestNoPageOfAnotherOriginReachesARouteThatChangesSomething(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		env, _ := environment(t, "postgres://nobody@127.0.0.1:1/none")
		routes, err := fn.Patterns(env, functions.Catalogue()...)
		require.NoError(t, err)
		tried := 0
		for pattern := range routes {
			method, path, _ := strings.Cut(pattern, " ")
			path = regexp.MustCompile(`\{[^}]+\}`).ReplaceAllString(path, "1")
			if method == http.MethodGet && pattern != changedByGET[0] {
				continue
			}
			tried++
			for _, browser := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
				got := s.do(method, path+"?app_id=a", "", browser...)
				require.Equal(t, 403, got.status, "%s %v: %s", pattern, browser, got.text)
				require.Contains(t, got.text, "pages of another origin")
			}
		}
		require.Greater(t, tried, 30)
	})
}

func TestAFormCannotRevokeACallerNorAnImageClaimATask(t *testing.T) {
	t.Parallel()
	s := serve(t)
	made := s.post("/api/v1/admin/callers", `{"name":"ann","roles":["sender"]}`)
	require.Equal(t, 200, made.status, made.text)
	sent := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)
	require.Equal(t, 200, sent.status, sent.text)

	revoke := fmt.Sprintf("/api/v1/admin/callers/%s/revoke", made.data("id"))
	require.Equal(t, 403, s.do("POST", revoke, "", "Origin", "https://evil.example", "Content-Type", "application/x-www-form-urlencoded").status)
	require.Zero(t, s.count(`select count(*) from callers where revoked_at is not null`))
	require.Equal(t, 403, s.do("GET", "/api/v1/sms/tasks/pending?app_id=evil", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors").status)

	ann := &server{t: t, url: s.url, user: "ann", password: made.data("token").(string)}
	require.Len(t, ann.get("/api/v1/sms/tasks/pending?app_id=app").list(), 1)
	require.Equal(t, 200, s.post(revoke, "").status)
}
