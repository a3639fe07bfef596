package fn

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strconv"
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

// behindProxy believes what the test says of where a call came from.
func behindProxy(c *settings.Config) { _ = c.TrustedProxies.Decode("127.0.0.0/8") }

func from(address string) func(*http.Request) { return header("X-Forwarded-For", address) }

// lowerLoginLimits makes a few failures what the service takes many to reach.
func (h *testServer) lowerLoginLimits() { h.env.logins.addressBurst, h.env.logins.totalBurst = 20, 100 }

// greetAs is the status of a call, and after how many seconds to come back.
func (h *testServer) greetAs(options ...func(*http.Request)) (status, after int) {
	r := h.call("POST", "/api/v1/greet", `{"name":"a"}`, options...)
	after, _ = strconv.Atoi(r.header.Get("Retry-After"))
	return r.status, after
}

const guessers = 32

// guess tries n different passwords, several at once, and counts the statuses.
func (h *testServer) guess(n int, name func(i int) string, address string) map[int]int {
	h.t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	got := map[int]int{}
	var next atomic.Int32
	for range guessers {
		all.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				status, after := h.greetAs(as(name(i), fmt.Sprint("guess ", i)), from(address))
				mu.Lock()
				got[status]++
				if status == 429 && after < 1 {
					got[-1]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	require.Zero(h.t, got[-1], "every 429 says when to come back")
	return got
}

func named(name string) func(int) string { return func(int) string { return name } }

func TestGuessesOfOneNameAreSlowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, password string }{{"submitter", "token"}, {"admin", "secret"}} {
		h := startServer(t, behindProxy, greeter())
		right := as(c.name, c.password)
		got := h.guess(500, named(c.name), "203.0.113.9")
		require.LessOrEqual(t, got[401], pairBurst+guessers, "so many at once")
		require.Equal(t, 500, got[401]+got[429], "%v", got)
		r := h.call("POST", "/api/v1/greet", `{"name":"a"}`, right, from("203.0.113.9"))
		require.Equal(t, 429, r.status, "where it was guessed at, the right one must wait too")
		require.Equal(t, "too_many_attempts", r.Error)
		for _, address := range []string{"203.0.113.10", "2001:db8::1"} {
			status, _ := h.greetAs(right, from(address))
			require.Equal(t, 200, status, "from another address it works")
		}
		status, _ := h.greetAs(as(map[string]string{"submitter": "admin", "admin": "submitter"}[c.name], map[string]string{"submitter": "secret", "admin": "token"}[c.name]), from("203.0.113.9"))
		require.Equal(t, 200, status, "another caller at the same address is not held up")
	}
}

func TestIPv6NetworkIsOneAddress(t *testing.T) {
	t.Parallel()
	require.Equal(t, network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::2"))
	require.NotEqual(t, network("2001:db8:1:2::1"), network("2001:db8:1:3::1"))
	require.NotEqual(t, network("203.0.113.9"), network("203.0.113.10"))
	require.Equal(t, network(""), network("no address"))
}

// An app that retries one wrong password forever has made one guess: its neighbours
// with the right one, for the same name, go on.
func TestRepeatedWrongPasswordIsOneGuess(t *testing.T) {
	t.Parallel()
	h := startServer(t, behindProxy, greeter())
	home := from("203.0.113.9")
	var apps sync.WaitGroup
	for range 8 {
		apps.Go(func() {
			for range 20 {
				status, _ := h.greetAs(as("submitter", "of last year"), home)
				require.Contains(t, []int{401, 429}, status)
				status, _ = h.greetAs(as("submitter", "token"), home)
				require.Equal(t, 200, status)
			}
		})
	}
	apps.Wait()
}

// longTokens is knownCallers with tokens that nobody guesses, as real ones are.
func longTokens(ctx context.Context, name string, list bool) (callers.Caller, error) {
	caller, err := knownCallers(ctx, name, list)
	caller.Proof = callers.TokenProof(nil, sha256.Sum256([]byte(longToken)))
	return caller, err
}

const longToken = "u8Zr5cO1mQk4"

func TestKnownLoginWorksDuringGuessing(t *testing.T) {
	t.Parallel()
	h := startServer(t, behindProxy, greeter())
	h.setCallers(longTokens)
	home, right := from("203.0.113.9"), as("submitter", longToken)
	status, _ := h.greetAs(right, home)
	require.Equal(t, 200, status)
	h.guess(100, named("submitter"), "203.0.113.9")
	status, _ = h.greetAs(as("submitter", "one more"), home)
	require.Equal(t, 429, status)
	for range 20 {
		status, _ = h.greetAs(right, home)
		require.Equal(t, 200, status)
	}
}

// counted counts what the database is asked.
type counted struct{ calls atomic.Int32 }

func (h *testServer) count(find findCaller) *counted {
	c := &counted{}
	h.setCallers(func(ctx context.Context, name string, list bool) (callers.Caller, error) {
		c.calls.Add(1)
		return find(ctx, name, list)
	})
	which := h.env.deferred.findExisting
	h.env.deferred.findExisting = func(ctx context.Context, names []string) ([]string, error) {
		before := c.calls.Load()
		defer func() { c.calls.Store(before + 1) }()
		return which(ctx, names)
	}
	return c
}

// Unknown names cost the database nothing after the first moments, from however many
// addresses they come. A caller that is made meanwhile, by another instance, gets in at
// the second call, from the same address even.
func TestUnknownNamesAreCached(t *testing.T) {
	t.Parallel()
	for name, addresses := range map[string]int{"from one address": 1, "from many": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startServer(t, behindProxy, greeter())
			h.lowerLoginLimits()
			var made atomic.Bool
			asked := h.count(func(ctx context.Context, name string, list bool) (callers.Caller, error) {
				if name != "new" {
					return knownCallers(ctx, name, list)
				}
				if !made.Load() {
					return callers.Caller{}, task.Refuse(task.CodeNotFound, "no such caller")
				}
				caller, err := knownCallers(ctx, "submitter", list)
				caller.Name = name
				return caller, err
			})
			status, _ := h.greetAs(as("submitter", "token"), from("203.0.113.1"))
			require.Equal(t, 200, status)
			began := time.Now()
			stop, flooded := make(chan struct{}), sync.WaitGroup{}
			var sent atomic.Int32
			for range guessers {
				flooded.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							i := int(sent.Add(1))
							h.greetAs(as(fmt.Sprint("nobody", i), "x"), from(fmt.Sprintf("198.51.%d.%d", i%addresses/250, i%250%addresses)))
						}
					}
				})
			}
			end := sync.OnceFunc(func() { close(stop); flooded.Wait() })
			defer end()
			require.Eventually(t, func() bool { return sent.Load() > 300 }, waitAtMost, tick)
			for range 20 {
				status, _ := h.greetAs(as("submitter", "token"), from("203.0.113.1"))
				require.Equal(t, 200, status, "the others go on")
			}
			made.Store(true)
			tries := 0
			for status = 0; status != 200; tries++ {
				var after int
				if status, after = h.greetAs(as("new", "token"), from("198.51.0.0")); status != 200 {
					require.Equal(t, 429, status)
					require.Less(t, tries, 2)
					time.Sleep(time.Duration(after) * time.Second) // as the answer says
				}
			}
			end()
			most := 1 + 100 + int(time.Since(began).Seconds()+1)*(totalRate+2)
			if addresses == 1 {
				most = 2 + 20 + int(time.Since(began).Seconds()+1)*(addressRate+2)
			}
			t.Logf("%d unknown names in %v cost %d queries", sent.Load(), time.Since(began).Round(time.Millisecond), asked.calls.Load())
			require.LessOrEqual(t, int(asked.calls.Load()), most)
		})
	}
}

// A name that nobody has fails as one that somebody has: with the same answers, and not
// before the same time.
func TestUnknownNameFailsLikeWrongPassword(t *testing.T) {
	t.Parallel()
	h := startServer(t, behindProxy, greeter())
	for _, name := range []string{"submitter", "admin"} {
		status, _ := h.greetAs(as(name, map[string]string{"submitter": "token", "admin": "secret"}[name]), from("203.0.113.1"))
		require.Equal(t, 200, status)
	}
	statuses := func(name, address string, passwords int) (got []int) {
		for i := range 12 {
			began := time.Now()
			status, _ := h.greetAs(as(name, fmt.Sprint("guess ", i%passwords)), from(address))
			got = append(got, status)
			if status == 401 {
				require.GreaterOrEqual(t, time.Since(began), failureTime, name)
			}
		}
		return got
	}
	names := []string{"submitter", "nobody", "admin"}
	for i, passwords := range []int{12, 1} {
		got := make([][]int, len(names))
		var all sync.WaitGroup
		for j, name := range names {
			all.Go(func() { got[j] = statuses(name, fmt.Sprintf("203.0.113.%d", 10*(i+1)+j), passwords) })
		}
		all.Wait()
		require.Equal(t, passwords == 12, slices.Contains(got[0], 429))
		for j, name := range names {
			require.Equal(t, got[0], got[j], name)
		}
	}
	t.Run("once the address has failed too often", func(t *testing.T) {
		h.lowerLoginLimits()
		h.guess(20+guessers, func(i int) string { return fmt.Sprint("nobody", i) }, "203.0.113.2")
		for i, name := range []string{"sender", "submitter", "nobody", "another", "admin"} {
			began := time.Now()
			status, after := h.greetAs(as(name, fmt.Sprint(i)), from("203.0.113.2"))
			if status == 401 { // the address has one failure more by now
				continue
			}
			require.Equal(t, []int{429, 1}, []int{status, after}, name)
			require.GreaterOrEqual(t, time.Since(began), failureTime, name)
		}
	})
}

// Where the failures of an address are spent, too, an answer does not show whether there is a caller
// of the name, cached or not, or whether the database is slow.
func TestUnknownNameFailsLikeWrongPasswordAtSpentAddress(t *testing.T) {
	t.Parallel()
	type answer struct {
		code, message string
		retryAfter    int
		took          time.Duration
	}
	for _, lookup := range []time.Duration{0, failureTime / 2, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			env := newTestEnv(t, settings.Config{Username: "admin", Password: "secret"}, func(ctx context.Context, name string, list bool) (callers.Caller, error) {
				time.Sleep(lookup)
				return longTokens(ctx, name, list)
			})
			_, err := env.login("submitter", longToken)
			require.NoError(t, err)
			env.logins.addressBurst = 0
			got := map[string][]answer{}
			for _, name := range []string{"submitter", "sender", "gone", "nobody", "admin"} {
				_, err := env.login(name, "first")
				require.Error(t, err)
				time.Sleep(2 * deferredLookupInterval) // names that exist are known from now on
				for i := range 2 * pairBurst {
					began := time.Now()
					_, err := env.login(name, fmt.Sprint("guess ", i))
					refusal := refusalOf(err, "")
					got[name] = append(got[name], answer{refusal.Code, refusal.Message, retryAfter(refusal), time.Since(began)})
				}
			}
			require.Equal(t, 1, got["nobody"][0].retryAfter)
			require.Greater(t, got["nobody"][2*pairBurst-1].retryAfter, 1, "of the limit of a name at an address")
			for name, answers := range got {
				require.Equal(t, got["nobody"], answers, name)
			}
			_, err = env.login("submitter", longToken)
			require.NoError(t, err, "one with the right password goes on")
			time.Sleep(callerTTL + time.Second)
			_, err = env.login("submitter", longToken)
			require.NoError(t, err)
		})
	}
}

// Names that were made up do not reset the limit of guesses for a name at an address.
func TestMadeUpNamesDoNotResetGuesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t, settings.Config{Username: "admin", Password: "secret"}, knownCallers)
		try := func(name, password, address string) error {
			a, err := env.logins.begin(name, password, address, time.Now().Add(-time.Hour))
			if err == nil {
				err = a.end(t.Context(), errCredentials)
			}
			return err
		}
		for i := range 20 * pairBurst {
			require.Error(t, try("admin", fmt.Sprint(i), fmt.Sprint("203.0.113.", i/pairBurst)))
		}
		limited := func() (n int) {
			for i := range 20 {
				if _, err := env.logins.begin("admin", "secret", fmt.Sprint("203.0.113.", i), time.Now()); err != nil {
					n++
				}
			}
			return n
		}
		require.Equal(t, 20, limited())
		for i := range 3 * pairLimit {
			require.Error(t, try(fmt.Sprint("nobody", i), "x", "198.51.100.9"))
		}
		require.Equal(t, 20, limited())

		before := len(env.logins.pairs)
		for _, name := range []string{strings.Repeat("x", 51), "sub\x00mitter", "two words", ""} {
			_, err := env.login(name, "x")
			require.Equal(t, codeUnauthenticated, task.CodeOf(err))
		}
		require.Len(t, env.logins.pairs, before, "names that no caller can have are not counted")
	})
}

// Whatever anybody sends, what is kept of it stays small.
func TestLoginLimiterMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLoginLimiter()
		try := func(i int, err error) {
			a, refused := g.begin(fmt.Sprint("name", i), fmt.Sprint(i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), time.Now().Add(-time.Hour))
			require.NoError(t, refused)
			_ = a.end(t.Context(), err)
		}
		for i := range 3 * pairLimit {
			try(i, errCredentials)
			try(i, nil)
		}
		require.LessOrEqual(t, len(g.pairs), pairLimit)
		require.LessOrEqual(t, len(g.addresses), addressLimit)
		require.LessOrEqual(t, len(g.succeeded), successLimit)
		require.LessOrEqual(t, len(g.existing), successLimit)
		n := &deferredLookups{findExisting: func(context.Context, []string) ([]string, error) { return nil, nil }}
		for i := range 3 * deferredLookupLimit {
			n.add(fmt.Sprint(i), network(fmt.Sprintf("10.%d.%d.1", i>>8, i&255)), nil)
		}
		n.mu.Lock()
		require.Len(t, n.names, deferredLookupLimit)
		n.mu.Unlock()
		time.Sleep(3 * deferredLookupInterval)
		n.mu.Lock()
		defer n.mu.Unlock()
		require.Empty(t, n.names)
		require.False(t, n.running)
	})
}

// Addresses that send very many unknown names leave places for those of another.
func TestNameFloodLeavesPlacesForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &deferredLookups{findExisting: func(_ context.Context, names []string) ([]string, error) { return names, nil }}
		var found []string
		add := func(name, address string) {
			n.add(name, network(address), func(name string) { found = append(found, name) })
		}
		for address := range 4 {
			for i := range deferredLookupLimit {
				add(fmt.Sprint("nobody ", address, i), fmt.Sprint("198.51.100.", address))
			}
		}
		add("new", "203.0.113.9")
		time.Sleep(time.Second) // the Retry-After of the call
		synctest.Wait()
		require.Contains(t, found, "new")
		require.Greater(t, len(found), deferredLookupLimit/2, "places are not left unused")
		time.Sleep(2 * deferredLookupInterval) // until nothing runs
	})
}

// Failures are forgotten with time.
func TestLimitedLoginRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newLoginLimiter()
		for i := range pairBurst {
			a, err := g.begin("name", fmt.Sprint(i), "203.0.113.9", time.Now())
			require.NoError(t, err)
			require.ErrorIs(t, a.end(t.Context(), errCredentials), errCredentials)
		}
		_, err := g.begin("name", "one more", "203.0.113.9", time.Now())
		require.Equal(t, codeTooManyAttempts, task.CodeOf(err))
		time.Sleep(pairEvery)
		_, err = g.begin("name", "one more", "203.0.113.9", time.Now())
		require.NoError(t, err)
	})
}

func TestRefusedAnonymousCallsShareLogLines(t *testing.T) {
	t.Parallel()
	h := startServer(t, nil, greeter())
	anonymous := func(r *http.Request) { r.Header.Del("Authorization") }
	for i := range 50 {
		require.Equal(t, 401, h.call("POST", "/api/v1/greet", `{}`, anonymous).status)
		require.Equal(t, 404, h.call("GET", fmt.Sprint("/no/", i), "").status)
		status, _ := h.greetAs(as("submitter", "token"))
		require.Equal(t, 200, status)
	}
	lines := map[any]int{}
	for _, call := range h.calls(52) {
		lines[call["status"]]++
	}
	require.Equal(t, map[any]int{401.0: 1, 404.0: 1, 200.0: 50}, lines, "a caller that is known has a line for each call")
}
