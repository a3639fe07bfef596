package fn

import (
	"context"
	"errors"
	"net/http"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/trigger"
)

// eventFunction returns an event function that calls handle with each event, unless handle is nil.
func eventFunction(handle func(cloudevents.Event) error) Function {
	return Event("ticker", func(*Env, struct{}) EventHandler {
		return func(_ context.Context, _ *Call, e cloudevents.Event) error {
			if handle == nil {
				return nil
			}
			return handle(e)
		}
	})
}

func eventHeaders(r *http.Request) {
	r.SetBasicAuth("trigger", "token")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Ce-Specversion", "1.0")
	r.Header.Set("Ce-Id", "e1")
	r.Header.Set("Ce-Source", "/clock")
	r.Header.Set("Ce-Type", "sendonce.tick.v1")
}

func TestEventsAreReadInBinaryAndStructuredMode(t *testing.T) {
	t.Parallel()
	var got []cloudevents.Event
	h := startServer(t, nil, eventFunction(func(e cloudevents.Event) error {
		got = append(got, e)
		return nil
	}))
	r := h.call("POST", "/events/ticker", `{"n":1}`, eventHeaders)
	require.Equal(t, 204, r.status)
	require.Empty(t, r.body)
	r = h.call("POST", "/events/ticker", `{"specversion":"1.0","id":"e2","source":"/clock","type":"sendonce.tick.v1","datacontenttype":"application/json","data":{"n":1}}`,
		as("trigger", "token"), header("Content-Type", "application/cloudevents+json"))
	require.Equal(t, 204, r.status)
	r = h.call("POST", "/events/ticker", "", eventHeaders)
	require.Equal(t, 204, r.status, "an event need not have data")
	require.Len(t, got, 3)
	for _, e := range got[:2] {
		require.Equal(t, "sendonce.tick.v1", e.Type())
		require.JSONEq(t, `{"n":1}`, string(e.Data()))
	}
	require.Equal(t, "e1", h.callLines(3)[0]["event_id"])
}

func TestNumbersInEventsAreMaskedInLogs(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, eventFunction(nil))
	r := h.call("POST", "/events/ticker", "", eventHeaders, header("Ce-Id", "13800138000"), header("Ce-Type", "sendonce.13800138000.v1"))
	require.Equal(t, 204, r.status)
	logged := h.callLines(1)[0]
	require.Equal(t, "138****8000", logged["event_id"])
	require.Equal(t, "sendonce.138****8000.v1", logged["event_type"])

	id := task.NewID().String()
	h.call("POST", "/events/ticker", "", eventHeaders, header("Ce-Id", id))
	require.Equal(t, id, h.callLines(2)[1]["event_id"], "a UUID is no number")
}

func TestInvalidEventIsRefused(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, eventFunction(nil))
	without := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(name) } }
	r := h.call("POST", "/events/ticker", `{}`, eventHeaders, without("Ce-Specversion"))
	require.Equal(t, 400, r.status)
	require.Equal(t, "event", r.Fields[0].Field)
	r = h.call("POST", "/events/ticker", `{}`, eventHeaders, without("Ce-Id"), without("Ce-Type"))
	require.Equal(t, 400, r.status)
	require.Len(t, r.Fields, 2)
	require.Equal(t, []string{"id", "type"}, []string{r.Fields[0].Field, r.Fields[1].Field})
	r = h.call("POST", "/events/ticker", `[]`, eventHeaders, header("Content-Type", "application/cloudevents-batch+json"))
	require.Equal(t, 415, r.status)
	r = h.call("POST", "/events/ticker", `{`, as("trigger", "token"), header("Content-Type", "application/cloudevents+json"))
	require.Equal(t, 400, r.status)
	require.Equal(t, 403, h.call("POST", "/events/ticker", `{}`, eventHeaders, as("submitter", "token")).status)
	require.Equal(t, 405, h.call("GET", "/events/ticker", ``, eventHeaders).status)
}

func TestBusyEventsHaveOneLogLineAMinute(t *testing.T) {
	t.Parallel()
	var result error = task.Refuse(task.CodeServerBusy, "later")
	neighbour := Event("neighbour", func(*Env, struct{}) EventHandler {
		return func(context.Context, *Call, cloudevents.Event) error {
			return task.Refuse(task.CodeServerBusy, "later")
		}
	})
	h := startServer(t, nil, neighbour, eventFunction(func(cloudevents.Event) error { return result }))
	call := func(path string, status int) {
		require.Equal(t, status, h.call("POST", path, `{}`, eventHeaders).status)
	}
	for range 20 {
		call("/events/ticker", 503)
	}
	call("/events/neighbour", 503)
	result = errors.New("bug")
	call("/events/ticker", 500)
	call("/events/ticker", 500)
	var functions []any
	for _, line := range h.callLines(4) {
		functions = append(functions, line["function"])
	}
	require.Equal(t, []any{"ticker", "neighbour", "ticker", "ticker"}, functions)
}

// batchFunction returns an event function that calls handle with each batch.
func batchFunction(handle func([]streamevent.Event) error) Function {
	return EventBatch("batches", func(*Env, struct{}) (EventHandler, BatchHandler) {
		return func(context.Context, *Call, cloudevents.Event) error { return nil },
			func(_ context.Context, _ *Call, events []streamevent.Event) error { return handle(events) }
	})
}

func TestInvalidBatchIsRefused(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, batchFunction(func([]streamevent.Event) error { return nil }))
	for _, body := range []string{`{}`, `[`, `[1]`, `[{"id":1}]`, `[{"time":"yesterday"}]`} {
		r := h.call("POST", "/events/batches", body, as("trigger", "token"), header("Content-Type", trigger.BatchType))
		require.Equal(t, 400, r.status, body)
		require.Equal(t, "body", r.Fields[0].Field)
	}
}
