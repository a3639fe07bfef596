package functions

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// TestEveryRouteLetsInItsRolesAndNoOther calls each route of the catalogue as each
// kind of caller. Which roles a route has is said in openapi.yaml, which
// TestTheContractHasEveryRouteAndNoOther compares with the catalogue.
func TestEveryRouteLetsInItsRolesAndNoOther(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	env, h := environment(t, url)
	builtIn := serveHandler(t, h).connect(url)
	patterns, err := fn.Patterns(env, Catalogue()...)
	require.NoError(t, err)

	roles := map[string]fn.Role{"a-submitter": fn.Submitter, "a-sender": fn.Sender, "a-receiver": fn.Receiver, "a-trigger": fn.Trigger, "an-admin": fn.Admin}
	callers := map[string]*server{}
	for name, role := range roles {
		callers[name] = builtIn.caller(name, string(role))
	}
	revoked := builtIn.caller("revoked", "admin")
	require.Equal(t, 200, builtIn.post("/api/v1/admin/callers/"+builtIn.text(`select id::text from callers where name = 'revoked'`)+"/revoke", "").status)
	strangers := map[string]*server{"revoked": revoked}
	for name, pair := range map[string][2]string{"nobody": {"", ""}, "unknown": {"nobody", "x"}, "a wrong password": {"a-sender", "x"}, "the name of the built-in admin": {"admin", "x"}} {
		one := *builtIn
		one.user, one.password = pair[0], pair[1]
		strangers[name] = &one
	}

	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		method, path, _ := strings.Cut(pattern, " ")
		path = pathValues.Replace(path)
		body := ""
		if method != "GET" && method != "DELETE" {
			body = `{"unknown_field":1}` // which no route accepts, so nothing is done
		}
		for name, stranger := range strangers {
			answer := stranger.do(method, path, body)
			assert.Contains(t, []int{401, 429}, answer.status, "%s as %s: %s", pattern, name, answer.text)
		}
		for name, caller := range callers {
			answer := caller.do(method, path+refused(method), body)
			allowed := roles[name] == fn.Admin || slices.Contains(patterns[pattern], roles[name])
			if allowed {
				assert.NotContains(t, []int{200, 401, 403, 500}, answer.status, "%s as %s: %s", pattern, name, answer.text)
			} else {
				assert.Equal(t, 403, answer.status, "%s as %s: %s", pattern, name, answer.text)
			}
		}
	}
	require.Zero(t, builtIn.count(`select count(*) from tasks`)+builtIn.count(`select count(*) from messages`), "nothing was done")
}

// refused is a query that no route accepts: it shows that a caller was let in, and
// nothing is done.
func refused(method string) string {
	if method == "GET" || method == "DELETE" {
		return "?unknown_parameter=1"
	}
	return ""
}
