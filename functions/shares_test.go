package functions

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// A caller whose polls take all that it may have is stopped there: others claim, submit
// and poll, its own reports have places, and the admin revokes it.
func TestPollsOfOneCallerLeavePlacesForOthers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	_, h := environment(t, url, func(c *fn.Config) { c.MaxCalls, c.MaxWaiting = 16, 16 })
	admin := serveHandler(t, h).connect(url)
	greedy, honest, shop := admin.caller("greedy", "sender"), admin.caller("honest", "sender"), admin.caller("shop", "submitter")
	const path = "/api/v1/sms/tasks/pending?limit=1&wait=30&app_id=app"
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	statuses := make(chan int, 100)
	for range 100 {
		go func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", greedy.url+path, nil)
			req.SetBasicAuth(greedy.user, greedy.password)
			res, err := http.DefaultClient.Do(req)
			if err == nil {
				res.Body.Close()
				statuses <- res.StatusCode
			}
		}()
	}
	for range 96 {
		require.Equal(t, 429, <-statuses, "a quarter of 16 waits")
	}
	require.Empty(t, statuses)

	got := honest.waiting(path)
	require.Equal(t, 200, shop.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"a"}`).status)
	for range 4 { // those of the greedy caller have waited for longer
		require.Equal(t, 200, shop.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"a"}`).status)
	}
	select {
	case r := <-got:
		require.Len(t, r.list(), 1)
	case <-time.After(patience):
		require.Fail(t, "the honest caller was not woken")
	}
	for range 4 {
		require.Equal(t, 200, <-statuses)
	}
	full := greedy.get("/api/v1/sms/tasks/pending?limit=1&app_id=app")
	require.Equal(t, 200, full.status, "who does not wait needs no place to wait in")
	revoked := admin.post(fmt.Sprintf("/api/v1/admin/callers/%d/revoke", admin.count(`select id from callers where name = 'greedy'`)), "")
	require.Equal(t, 200, revoked.status, revoked.text)
	require.Equal(t, 401, greedy.get(path).status)
}
