package e2e

import (
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// allowLoopback lets webhooks reach this machine.
const allowLoopback = "SENDONCE_OUTGOING_NETWORKS=127.0.0.0/8"

// city is a post office where every function is a process of its own; one door
// leads the trigger to them, also to those that were started again.
type city struct {
	*postOffice
	processes map[string]*sandbox.Process

	mu        sync.Mutex // the door reads while the test writes
	addresses map[string]string
}

// grow starts every function and a trigger with the default safety tick.
func (o *postOffice) grow(env ...string) *city {
	o.t.Helper()
	o.env = append(o.env, env...)
	c := &city{postOffice: o, processes: map[string]*sandbox.Process{}, addresses: map[string]string{}}
	var all []string
	for _, f := range functions.Catalogue() {
		all = append(all, f.Name)
	}
	c.run(all...)
	c.client = c.api("messages")
	door := httptest.NewServer(&httputil.ReverseProxy{Rewrite: c.route, ErrorLog: log.New(io.Discard, "", 0)})
	o.t.Cleanup(door.Close)
	o.trigger(door.URL)
	return c
}

// run starts functions, again or for the first time.
func (c *city) run(functions ...string) {
	c.t.Helper()
	for _, f := range functions {
		c.processes[f] = startProcess(c.t, c.bin, append(slices.Clone(c.env), "FUNCTION_TARGET="+f))
	}
	for _, f := range functions {
		at := address(c.t, c.processes[f])
		c.mu.Lock()
		c.addresses[f] = at
		c.mu.Unlock()
	}
}

// route sends /events/{function} to the function.
func (c *city) route(r *httputil.ProxyRequest) {
	c.mu.Lock()
	at := c.addresses[strings.TrimPrefix(r.In.URL.Path, "/events/")]
	c.mu.Unlock()
	if to, err := url.Parse(at); err == nil {
		r.SetURL(to)
	}
}

// api is a function as the admin calls it.
func (c *city) api(function string) *api.Client {
	return api.NewClient(c.addresses[function], "admin", "secret")
}

func (c *city) endpoint(url string, events ...string) api.EndpointResponse {
	c.t.Helper()
	e, err := c.api("webhooks").AddEndpoint(c.t.Context(), api.EndpointRequest{URL: url, Events: events})
	require.NoError(c.t, err)
	return e
}

// finish has n tasks sent and reported, and gives their ids.
func (c *city) finish(n int) []string {
	c.t.Helper()
	_, err := c.api("submit").SendBatch(c.t.Context(), slices.Repeat([]api.SendRequest{{PhoneNumber: "13800138000", Content: "hi"}}, n))
	require.NoError(c.t, err)
	ids, err := claimAll(c.api("claim"))
	require.NoError(c.t, err)
	require.Len(c.t, ids, n)
	reports, succeeded := make([]api.ReportRequest, n), 2
	for i, id := range ids {
		reports[i] = api.ReportRequest{TaskID: id, Status: &succeeded}
	}
	results, err := c.api("report").ReportBatch(c.t.Context(), "app", reports)
	require.NoError(c.t, err)
	for _, r := range results {
		require.Nil(c.t, r.Err)
	}
	return ids
}

// waitDelivered waits until n deliveries have succeeded, none is pending and no event
// waits to become one: whatever is told twice has been told by then.
func waitDelivered(c *city, n int) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		return waitingEvents(c) == 0 &&
			c.looker.count(`select count(*) from webhook_deliveries where state = 0`) == 0 &&
			c.looker.count(`select count(*) from webhook_deliveries where state = 1`) == n
	}, waitLimit, 10*time.Millisecond, "all are told")
}

// requireEachOnce says that v heard of each of the tasks once, and of nothing else.
func requireEachOnce(v *receiver, t *testing.T, tasks []string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	ids, subjects := map[string]bool{}, make([]string, len(v.bodies))
	for i, body := range v.bodies {
		var e api.WebhookEvent
		require.NoError(t, json.Unmarshal(body, &e))
		require.Equal(t, "sendonce.task.succeeded.v1", e.Type)
		ids[v.headers[i].Get("webhook-id")], subjects[i] = true, e.Subject
	}
	require.Len(t, ids, len(tasks))
	requireSame(t, tasks, subjects, "each is told once")
}
