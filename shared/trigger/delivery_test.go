package trigger

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestVerdictOfStatus(t *testing.T) {
	t.Parallel()
	for want, statuses := range map[verdictKind][]int{
		verdictDone:    {200, 202, 204},
		verdictRetry:   {404, 408, 409, 425, 429, 499, 500, 503},
		verdictDenied:  {302, 401, 403},
		verdictRefused: {400, 405, 413, 415, 422},
	} {
		for _, status := range statuses {
			require.Equal(t, want, verdictOf(&http.Response{StatusCode: status, Header: http.Header{FunctionHeader: {"f"}}}, nil, "f").kind, status)
		}
	}
}

// A proxy may respond in place of a function that it cannot reach.
func TestResponseWithoutFunctionHeaderSettlesNoEvent(t *testing.T) {
	t.Parallel()
	proxy := func(status int) verdict {
		return verdictOf(&http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"3600"}}}, nil, "f")
	}
	for _, status := range []int{200, 204, 400, 404, 405, 413, 500, 502, 503} {
		v := proxy(status)
		require.Equal(t, verdictRetry, v.kind, status)
		require.Equal(t, status != 500 && status != 502, v.unavailable, "%d: unavailable, except after 500 and 502: the message may have crashed the function", status)
		require.Zero(t, v.retryAfter, "a proxy must not stop events for an hour")
		require.Contains(t, v.reason, "not a response of the function f")
	}
	require.Equal(t, verdictDenied, proxy(403).kind)
	other := http.Header{FunctionHeader: {"other"}}
	require.Equal(t, verdictRetry, verdictOf(&http.Response{StatusCode: 200, Header: other}, nil, "f").kind)
}

func TestFailedDeliveryIsRetried(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	f := newFunction(t, func(w http.ResponseWriter, _ call, n int) {
		if n <= 2 {
			w.WriteHeader(500)
		}
	})
	publishAll(t, b, eventMessage("1"))
	trigger := runTrigger(t, b, testConfig(f), testRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.Equal(t, RouteCounts{Deliveries: 3, Acked: 1, Retried: 2}, trigger.Counts()["d"])
	require.Equal(t, "3", f.allCalls()[2].header.Get("Ce-Deliveryattempt"))
}

func TestDeliveryHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	f := newFunction(t, func(w http.ResponseWriter, _ call, n int) {
		if n == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(503)
		}
	})
	publishAll(t, b, eventMessage("1"))
	trigger := runTrigger(t, b, testConfig(f), testRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.GreaterOrEqual(t, f.allCalls()[1].at.Sub(f.allCalls()[0].at), time.Second)
}

func TestUnavailableBackoffIsBounded(t *testing.T) {
	t.Parallel()
	trigger := &Trigger{cfg: Config{MinBackoff: time.Second, MaxBackoff: 5 * time.Minute}, client: http.DefaultClient}
	pause := func(status int, retryAfter string) time.Duration {
		response := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retryAfter}, FunctionHeader: {"f"}}}
		return trigger.retryDelay(&route{}, verdictOf(response, nil, "f"), 20)
	}
	require.LessOrEqual(t, pause(503, "1"), unavailableBackoffMax)
	require.Equal(t, time.Minute, pause(503, "60"))
	unordered := &route{Route: unorderedRoute()}
	require.LessOrEqual(t, trigger.retryDelay(unordered, verdict{kind: verdictRetry, unavailable: true, retryAfter: time.Second}, 20), unorderedBackoffMax,
		"other events wait behind the waiting retries")
	require.GreaterOrEqual(t, pause(503, ""), 5*time.Minute, "without Retry-After the function may be broken")
	require.GreaterOrEqual(t, pause(500, "1"), 5*time.Minute)

	function := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })) // closes the connection
	defer function.Close()
	call := func() time.Duration {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, function.URL, nil)
		require.NoError(t, err)
		v := trigger.call(req, "f")
		require.Equal(t, verdictRetry, v.kind)
		return trigger.retryDelay(&route{}, v, 20)
	}
	require.GreaterOrEqual(t, call(), 5*time.Minute, "the message may have crashed the function")
	function.Close()
	require.LessOrEqual(t, call(), unavailableBackoffMax, "connection refused")
}

func TestRefusedEventBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		if c.id == "poison" {
			w.WriteHeader(422)
			_, _ = w.Write([]byte("not\nthis one"))
		}
	})
	poison := eventMessage("poison")
	require.NoError(t, poison.Event.SetData("text/plain", []byte("bad")))
	publishAll(t, b, poison, eventMessage("2"), eventMessage("3"))
	trigger := runTrigger(t, b, testConfig(f), testRoute())
	bustest.Eventually(t, func() bool { return isSettled(t, broker, testRoute()) }, "all settled")
	want := RouteCounts{Deliveries: 3, Acked: 2, DeadLettered: 1}
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"] == want }, "counted")

	s := broker.Stream(bus.StreamDeadLetters)
	m, err := s.GetLastMsgForSubject(t.Context(), "dlq.EVENTS.d")
	require.NoError(t, err)
	require.Equal(t, "bad", string(m.Data))
	for name, want := range map[string]string{
		"Nats-Msg-Id": "dlq-EVENTS-1-d-poison", "ce-id": "poison", "ce-type": "sendonce.task.succeeded.v1", "content-type": "text/plain",
		"dlq-function": "f", "dlq-subject": "evt.task.succeeded", "dlq-stream": "EVENTS", "dlq-sequence": "1",
		"dlq-status": "422", "dlq-reason": "422 Unprocessable Entity not this one", "dlq-attempts": "1",
	} {
		require.Equal(t, want, m.Header.Get(name), name)
	}
	require.EqualValues(t, 1, s.CachedInfo().State.Msgs)
}

// refusingFunction returns a function that refuses the event with this id, responds to its RefusedType event with the
// status from record, and calls accept for other events.
func refusingFunction(t *testing.T, id string, record func() int, accept func(http.ResponseWriter, call)) *function {
	return newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		switch {
		case c.header.Get("Ce-Type") == RefusedType:
			w.WriteHeader(record())
		case slices.Contains(idsOf(t, c), id):
			w.WriteHeader(http.StatusUnprocessableEntity)
		default:
			accept(w, c)
		}
	})
}

func TestEventIsKeptUntilDeadLettered(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	var canRecord atomic.Bool
	f := refusingFunction(t, "1", func() int {
		if canRecord.Load() {
			return http.StatusNoContent
		}
		return http.StatusServiceUnavailable
	}, func(http.ResponseWriter, call) {})
	trigger := runTrigger(t, b, testConfig(f), testRoute())
	trigger.fillDeadLetters(t, broker)
	publishAll(t, b, eventMessage("1"))
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Retried >= 2 }, "the event is retried while neither DEADLETTERS nor the function stores it")
	require.Zero(t, trigger.Counts()["d"].DeadLettered)

	canRecord.Store(true)
	bustest.Eventually(t, func() bool { return isSettled(t, broker, testRoute()) }, "settled")
	require.EqualValues(t, 1, trigger.Counts()["d"].DeadLettered)
	calls := f.allCalls()
	require.JSONEq(t, `{"id":"1","type":"sendonce.task.succeeded.v1","event":"","reason":"422 Unprocessable Entity","attempts":`+
		strconv.Itoa(int(trigger.Counts()["d"].Retried)+1)+`}`, calls[len(calls)-1].body)
}

// fillDeadLetters waits until the trigger has created all streams, and then leaves DEADLETTERS no room for any message.
func (r *runningTrigger) fillDeadLetters(t *testing.T, broker *bustest.Broker) {
	t.Helper()
	bustest.Eventually(t, func() bool { return r.Ready() == nil && len(r.Streams()) == 6 }, "all streams exist")
	broker.ChangeStream(bus.StreamDeadLetters, func(c *jetstream.StreamConfig) { c.MaxBytes = 10 })
}

func TestRedirectIsLoggedAndRetried(t *testing.T) {
	t.Parallel()
	broker, b := newBroker(t)
	log := &sandbox.LogBuffer{}
	f := newFunction(t, func(w http.ResponseWriter, _ call, n int) {
		if n <= 2 {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(302)
		}
	})
	publishAll(t, b, eventMessage("1"))
	trigger := runTriggerLogging(t, log, b, testConfig(f), testRoute())
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged after two errors")
	require.Equal(t, RouteCounts{Deliveries: 3, Acked: 1, Denied: 2}, trigger.Counts()["d"], "a redirect is not followed")
	require.Zero(t, broker.Info(bus.StreamDeadLetters).State.Msgs)
	require.Contains(t, log.String(), "level=ERROR")
	require.Contains(t, log.String(), "the function rejected the trigger's credentials")
}

func TestSlowFunctionIsCalledOnce(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	f := newFunction(t, func(_ http.ResponseWriter, _ call, _ int) { time.Sleep(2500 * time.Millisecond) })
	route := testRoute()
	route.AckWait = time.Second
	publishAll(t, b, eventMessage("1"))
	trigger := runTrigger(t, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.Len(t, f.allCalls(), 1)
}

func TestDeliveryTimeoutIsRetried(t *testing.T) {
	t.Parallel()
	_, b := newBroker(t)
	release := make(chan struct{})
	f := newFunction(t, func(_ http.ResponseWriter, _ call, n int) {
		if n == 1 {
			<-release
		}
	})
	defer close(release)
	route := testRoute()
	route.Timeout = 50 * time.Millisecond
	publishAll(t, b, eventMessage("1"))
	trigger := runTrigger(t, b, testConfig(f), route)
	bustest.Eventually(t, func() bool { return trigger.Counts()["d"].Acked == 1 }, "acknowledged")
	require.GreaterOrEqual(t, f.countOf("1"), 2) // on a slow machine, another delivery may take too long
}
