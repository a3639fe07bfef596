package fn

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/callers"
)

func TestOnlyValidCredentialsAreAccepted(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	for _, c := range []struct {
		name   string
		option func(*http.Request)
		status int
	}{
		{"the admin", as("admin", "secret"), 200},
		{"the admin with another password", as("admin", "Secret"), 401},
		{"the admin without a password", as("admin", ""), 401},
		{"a caller with the role", as("submitter", "token"), 200},
		{"a caller with another token", as("submitter", "token2"), 401},
		{"a caller without the role", as("sender", "token"), 403},
		{"a revoked caller", as("gone", "token"), 401},
		{"an unknown name", as("nobody", "token"), 401},
		{"no name", as("", ""), 401},
		{"a name that no caller can have", as(strings.Repeat("x", 51), "token"), 401},
		{"a name with NUL", as("sub\x00mitter", "token"), 401},
		{"no credentials", anonymous, 401},
		{"a bearer token", header("Authorization", "Bearer token"), 401},
		{"broken base64", header("Authorization", "Basic !!!"), 401},
		{"the database is unavailable", as("outage", "token"), 503},
	} {
		r := h.greet(c.option)
		require.Equal(t, c.status, r.status, c.name)
		challenge := map[bool]string{true: `Basic realm="sendonce"`}[c.status == 401]
		require.Equal(t, challenge, r.header.Get("WWW-Authenticate"), c.name)
	}
	r := h.greet(as("sender", "token"))
	require.Equal(t, "forbidden", r.Error)
	require.Equal(t, "this needs the role submitter", r.Message)
}

func TestEmptyPasswordIsRefused(t *testing.T) {
	t.Parallel()
	h := startServer(t, func(c *settings.Config) { c.Password = "" }, greeter())
	require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "")).status)
}

func TestBuiltInAdminNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	h.setCallers(func(context.Context, string, bool) (callers.Caller, error) {
		return callers.Caller{}, errors.New("the database was queried")
	})
	require.Equal(t, 204, h.call("PUT", "/api/v1/empty", "").status)
	require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "wrong")).status)
	require.Equal(t, 503, h.call("PUT", "/api/v1/empty", "", as("other", "x")).status)
}

func TestAdminWithQueuesNeedsRouteWithinQueues(t *testing.T) {
	t.Parallel()
	admin := callers.Caller{Roles: []string{"admin"}, Queues: []string{"a"}}
	for _, c := range []struct {
		name         string
		caller       callers.Caller
		roles        []Role
		withinQueues bool
		want         bool
	}{
		{"a route for admins that is not within queues", admin, []Role{Admin}, false, false},
		{"a route within queues", admin, []Role{Admin}, true, true},
		{"a route for another role", admin, []Role{Submitter}, false, false},
		{"a route for another role within queues", admin, []Role{Sender}, true, false},
		{"a route for events", admin, []Role{Trigger}, false, false},
		{"an admin with queues who is also a sender", callers.Caller{Roles: []string{"admin", "sender"}, Queues: []string{"a"}}, []Role{Sender}, false, true},
		{"a sender with queues on a route within queues", callers.Caller{Roles: []string{"sender"}, Queues: []string{"a"}}, []Role{Admin}, true, false},
		{"an admin who is not limited to queues", callers.Caller{Roles: []string{"admin"}}, []Role{Admin}, false, true},
	} {
		call := &Call{Caller: c.caller, roles: c.roles, withinQueues: c.withinQueues}
		require.Equal(t, c.want, call.checkRole() == nil, c.name)
	}
}

func TestHashedPasswordIsAccepted(t *testing.T) {
	t.Parallel()
	hash, err := auth.HashPassword("secret", auth.MinHashIterations)
	require.NoError(t, err)
	h := startServer(t, func(c *settings.Config) { c.Password, c.PasswordHash = "", hash }, greeter())
	for range 2 { // in the second round the process remembers the right password
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "Secret")).status)
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "")).status)
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", hash)).status, "the hash is not a password")
		require.Equal(t, 204, h.call("PUT", "/api/v1/empty", "").status)
		require.Equal(t, 200, h.greet(as("submitter", "token")).status)
	}
	require.NotContains(t, h.log.String(), hash)
}
