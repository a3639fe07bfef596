package fn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
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
		{"no credentials", func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		{"a bearer token", header("Authorization", "Bearer token"), 401},
		{"broken base64", header("Authorization", "Basic !!!"), 401},
		{"the database is away", as("outage", "token"), 503},
	} {
		r := h.call("POST", "/api/v1/greet", `{"name":"a"}`, c.option)
		require.Equal(t, c.status, r.status, c.name)
		challenge := map[bool]string{true: `Basic realm="sendonce"`}[c.status == 401]
		require.Equal(t, challenge, r.header.Get("WWW-Authenticate"), c.name)
	}
	r := h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("sender", "token"))
	require.Equal(t, "forbidden", r.Error)
	require.Equal(t, "this needs the role submitter", r.Message)
}

func TestEmptyPasswordIsRefused(t *testing.T) {
	t.Parallel()
	h := startServer(t, func(c *settings.Config) { c.Password = "" }, greeter())
	require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "")).status)
}

func TestAuthenticationPrecedesBody(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	r := h.call("POST", "/api/v1/greet", strings.Repeat("x", 100<<10), as("nobody", "x"), header("Content-Type", "text/plain"))
	require.Equal(t, 401, r.status)
}

func TestBuiltInAdminNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	h.env.callers = newCallerCache(func(context.Context, string, bool) (callers.Caller, error) {
		return callers.Caller{}, errors.New("was asked")
	})
	require.Equal(t, 204, h.call("PUT", "/api/v1/empty", "").status)
	require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "wrong")).status)
	require.Equal(t, 503, h.call("PUT", "/api/v1/empty", "", as("other", "x")).status)
}

func TestCallerIsLimitedToItsQueues(t *testing.T) {
	t.Parallel()
	c := &Call{Caller: callers.Caller{Roles: []string{"sender"}, Queues: []string{"a"}}}
	require.True(t, c.May(Sender))
	require.False(t, c.May(Submitter))
	require.True(t, c.MayUseQueue("a"))
	require.False(t, c.MayUseQueue("b"))
	c.Caller = callers.Caller{Roles: []string{"admin"}}
	require.True(t, c.May(Submitter))
	require.True(t, c.MayUseQueue("b"))
}

func TestAdminWithQueuesNeedsRouteWithinQueues(t *testing.T) {
	t.Parallel()
	admin := callers.Caller{Roles: []string{"admin"}, Queues: []string{"a"}}
	for _, c := range []struct {
		name   string
		caller callers.Caller
		roles  []Role
		within bool
		want   bool
	}{
		{"a new route for admins", admin, []Role{Admin}, false, false},
		{"a route within queues", admin, []Role{Admin}, true, true},
		{"a route of another role", admin, []Role{Submitter}, false, false},
		{"a route of another role within queues", admin, []Role{Sender}, true, false},
		{"a route for events", admin, []Role{Trigger}, false, false},
		{"a role of its own", callers.Caller{Roles: []string{"admin", "sender"}, Queues: []string{"a"}}, []Role{Sender}, false, true},
		{"no admin within queues", callers.Caller{Roles: []string{"sender"}, Queues: []string{"a"}}, []Role{Admin}, true, false},
		{"an admin without queues", callers.Caller{Roles: []string{"admin"}}, []Role{Admin}, false, true},
	} {
		call := &Call{Caller: c.caller, roles: c.roles, within: c.within}
		require.Equal(t, c.want, call.admitted() == nil, c.name)
	}
}

func TestCallerIsCachedForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		c := newCallerCache(func(ctx context.Context, name string, _ bool) (callers.Caller, error) {
			asked[name]++
			return knownCallers(ctx, name, false)
		})
		for _, name := range []string{"submitter", "nobody", "outage"} {
			for range 3 {
				_, _ = c.byName(t.Context(), name, false)
			}
		}
		require.Equal(t, map[string]int{"submitter": 1, "nobody": 1, "outage": 3}, asked, "only an outage is not remembered")
		time.Sleep(callerTTL + time.Second)
		for range 3 {
			_, _ = c.byName(t.Context(), "submitter", false)
			_, _ = c.byName(t.Context(), "nobody", false)
		}
		require.Equal(t, map[string]int{"submitter": 2, "nobody": 2, "outage": 3}, asked)
	})
}

func TestCallerLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		c := newCallerCache(func(ctx context.Context, name string, _ bool) (callers.Caller, error) {
			asked.Add(1)
			time.Sleep(time.Second)
			return knownCallers(ctx, name, false)
		})
		impatient, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.byName(impatient, "submitter", false)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		for range 50 {
			all.Go(func() {
				caller, err := c.byName(t.Context(), "submitter", false)
				require.NoError(t, err, "a call that is cancelled does not cancel the lookup")
				require.Equal(t, "submitter", caller.Name)
			})
		}
		all.Wait()
		require.EqualValues(t, 1, asked.Load())
	})
}

func TestWaitingListDoesNotBlockOtherCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCallerCache(func(ctx context.Context, name string, list bool) (callers.Caller, error) {
			if list {
				<-ctx.Done()
				return callers.Caller{}, ctx.Err()
			}
			return knownCallers(ctx, name, list)
		})
		var all sync.WaitGroup
		all.Go(func() {
			_, err := c.byName(t.Context(), "submitter", true)
			require.Error(t, err)
		})
		synctest.Wait()
		began := time.Now()
		caller, err := c.byName(t.Context(), "submitter", false)
		require.NoError(t, err)
		require.Equal(t, "submitter", caller.Name)
		require.Zero(t, time.Since(began))
		all.Wait()
	})
}

func TestGuessedNamesDoNotEvictKnownOnes(t *testing.T) {
	t.Parallel()
	var asked int
	c := newCallerCache(func(_ context.Context, name string, _ bool) (callers.Caller, error) {
		asked++
		if name == "real" {
			return callers.Caller{Name: name}, nil
		}
		return callers.Caller{}, task.Refuse(task.CodeNotFound, "no such caller")
	})
	_, err := c.byName(t.Context(), "real", false)
	require.NoError(t, err)
	for i := range callerLimit + 100 {
		_, err := c.byName(t.Context(), fmt.Sprint("guess", i), false)
		require.Error(t, err)
	}
	require.Len(t, c.unknown, callerLimit)
	before := asked
	_, err = c.byName(t.Context(), "real", false)
	require.NoError(t, err)
	require.Equal(t, before, asked)
}
