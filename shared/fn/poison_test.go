package fn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

// deadLetter is a row of dead_letters.
type deadLetter struct {
	function, eventID, eventType, event, reason string
	attempts                                    int
}

// startServerWithDeadLetters returns a server with a database, and its dead letters, newest
// first.
func startServerWithDeadLetters(t *testing.T, functions ...Function) (h *testServer, deadLetters func() []deadLetter) {
	t.Helper()
	url := sandbox.NewDatabase(t)
	h = startServer(t, func(c *settings.Config) { c.DatabaseURL, c.Roles = url, settings.Roles(sandbox.Roles) }, functions...)
	t.Cleanup(h.env.Close)
	return h, func() (all []deadLetter) {
		page, _, err := h.env.Admin.DeadLetters(t.Context(), 0, 10)
		require.NoError(t, err)
		for _, l := range page {
			all = append(all, deadLetter{l.Function, l.EventID, l.EventType, l.Event, l.Reason, l.Attempts})
		}
		return all
	}
}

// attempt makes a request the n-th attempt to deliver the event with this id; 0 = without the number of the attempt.
func attempt(id string, n int) func(*http.Request) {
	return func(r *http.Request) {
		eventHeaders(r)
		r.Header.Set("Ce-Id", id)
		if n > 0 {
			r.Header.Set("Ce-Deliveryattempt", strconv.Itoa(n))
		}
	}
}

func TestFifthPanicOverAnEventMakesADeadLetter(t *testing.T) {
	t.Parallel()
	h, deadLetters := startServerWithDeadLetters(t, eventFunction(func(e cloudevents.Event) error {
		if e.ID() == "bad" {
			panic("cannot read " + string(e.Data()))
		}
		return nil
	}))
	for _, n := range []int{1, 2, 3, 4} {
		require.Equal(t, 500, h.call("POST", "/events/ticker", `{"n":1}`, attempt("bad", n)).status, n)
		require.Empty(t, deadLetters(), n)
	}
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{"n":1}`, attempt("bad", 5)).status)
	want := deadLetter{"ticker", "bad", "sendonce.tick.v1", `{"n":1}`, `panic: cannot read {"n":1}`, 5}
	require.Equal(t, []deadLetter{want}, deadLetters())

	require.Equal(t, 204, h.call("POST", "/events/ticker", `{"n":1}`, attempt("bad", 6)).status, "a repeated delivery, as after a lost acknowledgement")
	want.attempts = 6
	require.Equal(t, []deadLetter{want}, deadLetters(), "there is still only one dead letter")
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{}`, attempt("good", 7)).status)
	require.Len(t, deadLetters(), 1)
}

func TestDeadLetterNeedsPanicsNotDeliveries(t *testing.T) {
	t.Parallel()
	h, deadLetters := startServerWithDeadLetters(t, eventFunction(func(cloudevents.Event) error { panic("no connection") }))
	require.Equal(t, 500, h.call("POST", "/events/ticker", `{}`, attempt("e", 50)).status)
	require.Empty(t, deadLetters(), "the 50th delivery, but the first panic")
}

func TestPoisonBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	h, deadLetters := startServerWithDeadLetters(t, eventFunction(func(cloudevents.Event) error {
		return fmt.Errorf("handle: %w", Poison(errors.New("its subject is no id")))
	}))
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{}`, attempt("without a number", 0)).status)
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{}`, attempt("first", 1)).status)
	require.Equal(t, []deadLetter{
		{"ticker", "first", "sendonce.tick.v1", `{}`, "its subject is no id", 1},
		{"ticker", "without a number", "sendonce.tick.v1", `{}`, "its subject is no id", 1},
	}, deadLetters())
}

func TestReturnedErrorIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	var result error
	h, deadLetters := startServerWithDeadLetters(t, eventFunction(func(cloudevents.Event) error { return result }))
	for _, c := range []struct {
		err    error
		status int
	}{
		{errors.New("bug"), 500},
		{task.Refuse(task.CodeInvalid, "no"), 400},
		{context.DeadlineExceeded, 503},
		{task.Refuse(task.CodeServerBusy, "later"), 503},
	} {
		result = c.err
		for _, n := range []int{1, 4, 5, 50} {
			require.Equal(t, c.status, h.call("POST", "/events/ticker", `{}`, attempt("e", n)).status, n)
		}
		require.Empty(t, deadLetters())
	}
}
