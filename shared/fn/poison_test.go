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
	"github.com/sendonce/sendonce/shared/task"
)

// letter is what a dead letter says.
type letter struct {
	function, eventID, eventType, event, reason string
	attempts                                    int
}

// startHouseWithDeadLetters is one with a database; letters are what it holds,
// newest first.
func startHouseWithDeadLetters(t *testing.T, functions ...Function) (h *house, letters func() []letter) {
	t.Helper()
	url := sandbox.NewDatabase(t)
	h = startHouse(t, func(c *Config) { c.DatabaseURL, c.Roles = url, Roles(sandbox.Roles) }, functions...)
	t.Cleanup(h.env.Close)
	return h, func() (all []letter) {
		page, _, err := h.env.DB().DeadLetters(t.Context(), 0, 10)
		require.NoError(t, err)
		for _, l := range page {
			all = append(all, letter{l.Function, l.EventID, l.EventType, l.Event, l.Reason, l.Attempts})
		}
		return all
	}
}

// attempt is the n-th delivery of the event id; 0 says no number.
func attempt(id string, n int) func(*http.Request) {
	return func(r *http.Request) {
		eventHeaders(r)
		r.Header.Set("Ce-Id", id)
		if n > 0 {
			r.Header.Set("Ce-Deliveryattempt", strconv.Itoa(n))
		}
	}
}

func TestAnEventThatAlwaysPanicsIsADeadLetterAtItsFifthDelivery(t *testing.T) {
	t.Parallel()
	h, letters := startHouseWithDeadLetters(t, ticker(func(e cloudevents.Event) error {
		if e.ID() == "bad" {
			panic("cannot read " + string(e.Data()))
		}
		return nil
	}))
	for _, n := range []int{1, 2, 3, 4} {
		require.Equal(t, 500, h.call("POST", "/events/ticker", `{"n":1}`, attempt("bad", n)).status, n)
		require.Empty(t, letters(), n)
	}
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{"n":1}`, attempt("bad", 5)).status)
	want := letter{"ticker", "bad", "sendonce.tick.v1", `{"n":1}`, `panic: cannot read {"n":1}`, 5}
	require.Equal(t, []letter{want}, letters())

	require.Equal(t, 204, h.call("POST", "/events/ticker", `{"n":1}`, attempt("bad", 6)).status, "its acknowledgement was lost")
	want.attempts = 6
	require.Equal(t, []letter{want}, letters(), "the same letter")
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{}`, attempt("good", 7)).status)
	require.Len(t, letters(), 1)
}

func TestThePanicsOverAnEventCountAndNotItsOtherFailures(t *testing.T) {
	t.Parallel()
	h, letters := startHouseWithDeadLetters(t, ticker(func(cloudevents.Event) error { panic("no connection") }))
	require.Equal(t, 500, h.call("POST", "/events/ticker", `{}`, attempt("e", 50)).status)
	require.Empty(t, letters())
}

func TestPoisonIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	h, letters := startHouseWithDeadLetters(t, ticker(func(cloudevents.Event) error {
		return fmt.Errorf("take: %w", Poison(errors.New("its subject is no id")))
	}))
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{}`, attempt("without a number", 0)).status)
	require.Equal(t, 204, h.call("POST", "/events/ticker", `{}`, attempt("first", 1)).status)
	require.Equal(t, []letter{
		{"ticker", "first", "sendonce.tick.v1", `{}`, "its subject is no id", 1},
		{"ticker", "without a number", "sendonce.tick.v1", `{}`, "its subject is no id", 1},
	}, letters())
}

func TestAnErrorThatMayPassIsNeverADeadLetter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
	}{
		{errors.New("bug"), 500},
		{context.DeadlineExceeded, 503},
		{task.Refuse(task.CodeServerBusy, "later"), 503},
	} {
		h, letters := startHouseWithDeadLetters(t, ticker(func(cloudevents.Event) error { return c.err }))
		for _, n := range []int{1, 4, 5, 50} {
			require.Equal(t, c.status, h.call("POST", "/events/ticker", `{}`, attempt("e", n)).status, n)
		}
		require.Empty(t, letters())
	}
}
