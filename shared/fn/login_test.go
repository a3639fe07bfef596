package fn

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
)

// behindProxy makes the service trust X-Forwarded-For. A test sets the address of a call with from.
func behindProxy(c *settings.Config) { _ = c.TrustedProxies.Decode("127.0.0.0/8") }

func from(address string) func(*http.Request) { return header("X-Forwarded-For", address) }

const guessers, guessesEach = 32, 16

// guess tries different passwords for a name from an address, several at once, and counts the statuses. Each 429 must
// have Retry-After.
func (h *testServer) guess(name, address string) map[int]int {
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[int]int{}
	for guesser := range guessers {
		all.Go(func() {
			for guess := range guessesEach {
				r := h.greet(as(name, fmt.Sprint("guess ", guesser, guess)), from(address))
				if r.status == 429 {
					assert.Regexp(h.t, "^[1-9]", r.header.Get("Retry-After"))
				}
				mu.Lock()
				got[r.status]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return got
}

func TestGuessesOfOneNameAreLimited(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		right, other func(*http.Request) // the right password, and that of another caller
		status       int                 // of the right password, from the address of the guesses
	}{{"submitter", as("submitter", "token"), as("admin", "secret"), 200}, {"admin", as("admin", "secret"), as("submitter", "token"), 429}} {
		h := startServer(t, behindProxy, greeter())
		got := h.guess(c.name, "203.0.113.9")
		require.LessOrEqual(t, got[401], 10+guessers, "guessers may start before the limit is reached")
		require.Equal(t, guessers*guessesEach, got[401]+got[429], "%v", got)
		r := h.greet(c.right, from("203.0.113.9"))
		require.Equal(t, c.status, r.status, "over the limit a token is still accepted, but not a short password")
		require.Equal(t, map[int]string{429: "too_many_attempts"}[c.status], r.Error)
		for _, address := range []string{"203.0.113.10", "2001:db8::1"} {
			require.Equal(t, 200, h.greet(c.right, from(address)).status, "the right password works from another address")
		}
		require.Equal(t, 200, h.greet(c.other, from("203.0.113.9")).status, "another caller at the same address is not limited")
	}
}

func TestRefusedAnonymousCallsShareLogLines(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	for i := range 50 {
		require.Equal(t, 401, h.call("POST", "/api/v1/greet", `{}`, anonymous).status)
		require.Equal(t, 404, h.call("GET", fmt.Sprint("/no/", i), "").status)
		require.Equal(t, 200, h.greet(as("submitter", "token")).status)
	}
	lines := map[any]int{}
	for _, call := range h.callLines(52) {
		lines[call["status"]]++
	}
	require.Equal(t, map[any]int{401.0: 1, 404.0: 1, 200.0: 50}, lines, "each call of a known caller has a line")
}
