package fn

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/callers"
)

// callHolder has routes whose calls last until release is called, and the route POST /call, whose calls end at once.
type callHolder struct {
	begun chan string // receives the name of the caller of each call that is held
	goOn  chan struct{}
}

func newCallHolder(t *testing.T) *callHolder {
	h := &callHolder{begun: make(chan string), goOn: make(chan struct{})}
	t.Cleanup(h.release)
	return h
}

func (h *callHolder) release() {
	select {
	case <-h.goOn:
	default:
		close(h.goOn)
	}
}

func (h *callHolder) hold(ctx context.Context, c *Call) error {
	select {
	case h.begun <- c.Caller.Name:
	case <-ctx.Done():
	}
	select {
	case <-h.goOn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *callHolder) function() Function {
	forThreeRoles := func(r Route) Route { return r.Or(Sender).Or(Receiver).Timeout(waitAtMost) }
	return HTTP("holder", func(*Env, struct{}) Routes {
		return Routes{
			"POST /hold": forThreeRoles(Raw(Submitter, func(ctx context.Context, c *Call) (any, error) { return nil, h.hold(ctx, c) })),
			"POST /call": forThreeRoles(Raw(Submitter, func(context.Context, *Call) (any, error) { return nil, nil })),
			"POST /poll": forThreeRoles(Raw(Submitter, func(ctx context.Context, c *Call) (any, error) {
				if err := c.StartWaiting(); err != nil {
					return nil, err
				}
				return nil, h.hold(ctx, c)
			})),
			"GET /stream": forThreeRoles(Stream(Submitter, func(ctx context.Context, c *Call, _ struct{}, w *EventWriter) error {
				if err := w.Mark("1"); err != nil {
					return err
				}
				return h.hold(ctx, c)
			})),
		}
	})
}

// begin makes a call that is held, as the admin or a caller of knownCallers. The channel has the status of the response
// when the whole response has arrived, or 0 if the connection was cut.
func (h *testServer) begin(holder *callHolder, method, path, name string) <-chan int {
	h.t.Helper()
	r := h.request(method, path, "", as(name, "token"))
	if name == "admin" {
		r.SetBasicAuth("admin", "secret")
	}
	status := make(chan int, 1)
	go func() {
		defer close(status)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err == nil {
			status <- res.StatusCode
		}
	}()
	select {
	case got := <-holder.begun:
		require.Equal(h.t, name, got)
	case <-time.After(waitAtMost):
		require.Fail(h.t, "a call did not reach its handler", "%s %s of %s", method, path, name)
	}
	return status
}

// requireRefused requires that a call of the caller with this name is refused.
func (h *testServer) requireRefused(method, path, name string, status int, code, retryAfter string) {
	h.t.Helper()
	r := h.call(method, path, "", as(name, "token"))
	require.Equal(h.t, []any{status, code, retryAfter}, []any{r.status, r.Error, r.header.Get("Retry-After")}, r.body)
}

// requireOthersServed requires that calls of these callers and of the admin, events and probes succeed.
func (h *testServer) requireOthersServed(names ...string) {
	h.t.Helper()
	for _, name := range names {
		require.Equal(h.t, 200, h.call("POST", "/call", "", as(name, "token")).status, name)
	}
	require.Equal(h.t, 200, h.call("POST", "/call", "").status, "the admin")
	require.Equal(h.t, 204, h.call("POST", "/events/ticker", "{}", eventHeaders).status, "events")
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		require.Equal(h.t, 200, h.call("GET", path, "").status, path)
	}
}

func TestCallerIsLimitedToItsShareOfCalls(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, func(c *settings.Config) { c.MaxCalls = 8 }, holder.function(), eventFunction(nil))
	for range 2 {
		h.begin(holder, "POST", "/hold", "submitter")
	}
	h.requireRefused("POST", "/call", "submitter", 429, "too_many_calls", "1")
	h.requireOthersServed("sender", "receiver")
	holder.release()
	require.Eventually(t, func() bool { return h.env.limiter.usedSlots()["calls"] == 0 }, waitAtMost, tick)
	h.requireOthersServed("submitter")
}

func TestFullInstanceServesAdminsEventsAndProbes(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, func(c *settings.Config) { c.MaxCalls = 2; c.CallerShare = 0.5 }, holder.function(), eventFunction(nil))
	h.setCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
		caller, err := knownCallers(ctx, strings.TrimPrefix(name, "admin-"), forList)
		if name != caller.Name { // a name such as admin-sender is that of another admin
			caller.Name, caller.Roles = name, []string{"admin"}
		}
		return caller, err
	})
	h.begin(holder, "POST", "/hold", "submitter")
	h.begin(holder, "POST", "/hold", "sender")
	h.requireRefused("POST", "/call", "receiver", 503, "server_busy", "1")
	h.requireRefused("POST", "/call", "sender", 429, "too_many_calls", "1")
	h.requireOthersServed("admin-submitter")
	// Of the pool reserved, one admin uses only a share and leaves slots to other admins.
	for range reservedCalls / 2 {
		h.begin(holder, "POST", "/hold", "admin-submitter")
	}
	h.requireRefused("POST", "/call", "admin-submitter", 429, "too_many_calls", "1")
	h.requireOthersServed("admin-sender")
}

// Polls and streams use only slots of the pool waiting.
func TestWaitingCallsHaveTheirOwnLimit(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, func(c *settings.Config) { c.MaxCalls = 4; c.MaxWaiting = 6; c.CallerShare = 0.5 }, holder.function(), eventFunction(nil))
	for name, routes := range map[string][]string{"submitter": {"POST /poll", "POST /poll", "GET /stream"}, "sender": {"GET /stream", "GET /stream", "GET /stream"}} {
		for _, route := range routes {
			method, path, _ := strings.Cut(route, " ")
			h.begin(holder, method, path, name)
		}
	}
	for _, name := range []string{"submitter", "sender"} {
		h.requireRefused("POST", "/poll", name, 429, "too_many_calls", "5")
		h.requireRefused("GET", "/stream", name, 429, "too_many_calls", "5")
	}
	h.requireRefused("POST", "/poll", "receiver", 503, "server_busy", "5")
	h.requireRefused("GET", "/stream", "receiver", 503, "server_busy", "5")
	require.Equal(t, 503, h.call("GET", "/stream", "").status, "no slot is reserved for an admin's streams")
	require.Equal(t, map[string]int{"calls": 0, "waiting": 6, "reserved": 0, "events": 0}, h.env.limiter.usedSlots())
	h.requireOthersServed("submitter", "sender", "receiver")
}

func TestCallUsesNoSlotBeforeAuthentication(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := startServer(t, func(c *settings.Config) { c.MaxCalls = 1 }, holder.function(), eventFunction(nil))
	lookups, release := make(chan struct{}, 20), make(chan struct{})
	h.setCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
		if strings.HasPrefix(name, "nobody") {
			lookups <- struct{}{}
			<-release
		}
		return knownCallers(ctx, name, forList)
	})
	var all sync.WaitGroup
	for i := range 20 {
		r := h.request("POST", "/call", "", as(fmt.Sprint("nobody", i), "x"))
		all.Go(func() { _ = send(t, r) })
	}
	for range 20 {
		<-lookups
	}
	h.requireOthersServed("submitter")
	close(release)
	all.Wait()
}

// However many connections without a call are open, other clients can connect.
func TestIdleConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := newTestServer(t, nil)
	const maxConnections, opened = 20, 60
	runServer(t, h, func(s *server) {
		s.http = httpserver.New(s.http.Handler, maxConnections, nil)
	}, holder.function(), eventFunction(nil))
	h.begin(holder, "GET", "/stream", "submitter")
	var closed atomic.Int64
	for i := range opened {
		w := h.dialRaw(t)
		if i%2 == 0 {
			_, _ = io.WriteString(w.conn, "POST /call HTTP/1.1\r\nHost: x\r\nContent-Le") // fails if the connection was closed
		}
		go func() {
			_, _ = w.responses.ReadByte() // nothing is sent before the end
			closed.Add(1)
		}()
	}
	require.Eventually(t, func() bool { return closed.Load() > opened-maxConnections }, waitAtMost/2, tick, "the connections that stay open include the stream's")
	h.requireOthersServed("sender")
	require.Equal(t, 1, h.env.limiter.usedSlots()["waiting"], "the stream goes on")
	holder.release()
}

// Calls whose bodies arrive slowly use no slot until the body is complete.
func TestHalfSentBodiesUseNoSlot(t *testing.T) {
	t.Parallel()
	holder := newCallHolder(t)
	h := newTestServer(t, func(c *settings.Config) { c.MaxCalls = 8 })
	runServer(t, h, nil, holder.function(), eventFunction(nil))
	h.setCallers(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
		caller, err := knownCallers(ctx, strings.TrimRight(name, "0123456789"), forList)
		caller.Name = name
		return caller, err
	})
	const callers, share = 6, 2
	counts := func() (reading, callers int) {
		h.env.limiter.mu.Lock()
		defer h.env.limiter.mu.Unlock()
		return h.env.limiter.reading, len(h.env.limiter.calls.byCaller)
	}
	var slow []*rawConn
	for i := range callers {
		for range share {
			w := h.dialRaw(t)
			w.send("POST /call HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n" +
				authorization(fmt.Sprint("sender", i), "token") + "\r\n{")
			slow = append(slow, w)
		}
	}
	require.Eventually(t, func() bool { reading, _ := counts(); return reading == callers*share }, waitAtMost, tick)
	for i := range callers {
		h.requireRefused("POST", "/call", fmt.Sprint("sender", i), 429, "too_many_calls", "1")
	}
	h.requireOthersServed("submitter", "receiver")
	require.Equal(t, 200, h.call("POST", "/call", "{}", as("submitter", "token")).status, "a call with a complete body too")
	// A call is refused if all slots are in use when its body is complete.
	for i := range 4 {
		for range share {
			h.begin(holder, "POST", "/hold", fmt.Sprint("submitter", i))
		}
	}
	slow[0].send("}")
	require.Equal(t, 503, slow[0].status())
	holder.release()
	require.Eventually(t, func() bool { return h.env.limiter.usedSlots()["calls"] == 0 }, waitAtMost, tick)
	for _, w := range slow[1 : len(slow)-1] {
		w.send("}")
		require.Equal(t, 200, w.status(), "a completed body gets a response")
	}
	require.NoError(t, slow[len(slow)-1].conn.Close())
	require.Eventually(t, func() bool { reading, callers := counts(); return reading == 0 && callers == 0 }, waitAtMost, tick, "everything is released")
	require.Zero(t, h.env.limiter.usedSlots()["calls"])
}

// If all slots are in use when the body of an admin is complete, the admin gets a slot of the pool reserved.
func TestAdminWithSlowBodyUsesReservedSlot(t *testing.T) {
	t.Parallel()
	l := newCallLimiter(&settings.Config{MaxCalls: 2, MaxWaiting: 1, CallerShare: 1})
	admin, err := l.acquireSlot(callers.Caller{Name: "admin", Roles: []string{"admin"}}, false, false)
	require.NoError(t, err)
	require.True(t, admin.startReading())
	for range 2 {
		_, err = l.acquireSlot(callers.Caller{Name: "submitter"}, false, false)
		require.NoError(t, err)
	}
	require.NoError(t, admin.endReading())
	require.Equal(t, map[string]int{"calls": 2, "waiting": 0, "reserved": 1, "events": 0}, l.usedSlots())
	admin.release()
	require.Equal(t, map[string]int{"calls": 2, "waiting": 0, "reserved": 0, "events": 0}, l.usedSlots())
	require.NotContains(t, l.calls.byCaller, "admin")
	require.Zero(t, l.reading)
}

func TestCallersOfOneOperatorShareSlots(t *testing.T) {
	t.Parallel()
	l := newCallLimiter(&settings.Config{MaxCalls: 8, MaxWaiting: 8, CallerShare: 0.25})
	ops, helper := callers.Caller{ID: 1, Name: "ops"}, callers.Caller{ID: 2, Name: "ops.helper", AccountID: 1, AccountName: "ops"}
	for _, caller := range []callers.Caller{ops, helper} {
		_, err := l.acquireSlot(caller, false, false)
		require.NoError(t, err)
	}
	for _, caller := range []callers.Caller{ops, helper} {
		_, err := l.acquireSlot(caller, false, false)
		require.ErrorIs(t, err, l.calls.errShare)
	}
	_, err := l.acquireSlot(callers.Caller{ID: 3, Name: "modest"}, false, false)
	require.NoError(t, err, "another caller has a share of its own")
}
