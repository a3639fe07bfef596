package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/auth/authtest"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// A flood of unknown names, from any number of addresses, causes few queries. A caller that another
// instance creates meanwhile can log in with its second call, even from the address of the flood.
func TestFloodOfUnknownNamesCausesFewQueries(t *testing.T) {
	t.Parallel()
	for what, addresses := range map[string]int{"from one address": 1, "from many": 1000} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var created atomic.Bool
				var queries atomic.Int32
				find := authtest.Source(func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
					if name == "new" && created.Load() {
						name = "submitter"
					}
					return knownCallers(ctx, name, forList)
				})
				p := newProcess(t, nil, func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
					queries.Add(1)
					return find(ctx, name, forList)
				})
				p.deferred.findExisting = func(ctx context.Context, names []string) ([]string, error) {
					queries.Add(1)
					return find.Existing(ctx, names)
				}
				p.limiter.addressBurst, p.limiter.totalBurst = 20, 100
				_, err := p.loginFrom("203.0.113.1", "submitter", token)
				require.NoError(t, err)
				began := time.Now()
				stop, flood := make(chan struct{}), sync.WaitGroup{}
				var sent atomic.Int32
				for range 32 {
					flood.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
								i := int(sent.Add(1))
								_, _ = p.loginFrom(fmt.Sprintf("198.51.%d.%d", i%addresses/250, i%250%addresses), fmt.Sprint("nobody", i), "x")
							}
						}
					})
				}
				time.Sleep(10 * time.Second)
				for range 20 {
					_, err := p.loginFrom("203.0.113.1", "submitter", token)
					require.NoError(t, err, "other callers can log in")
				}
				created.Store(true)
				if _, err = p.loginFrom("198.51.0.0", "new", token); err != nil { // nil if the address was below its limit at this moment
					require.Equal(t, CodeTooManyAttempts, task.CodeOf(err))
					time.Sleep(refusal(t, err).RetryAfter) // as Retry-After says
					_, err = p.loginFrom("198.51.0.0", "new", token)
					require.NoError(t, err)
				}
				close(stop)
				flood.Wait()

				// Two logins of callers, the burst, and each second the rate and at most two deferred lookups.
				seconds := int(time.Since(began).Seconds()) + 1
				limit := 2 + 100 + seconds*(totalRate+2)
				if addresses == 1 {
					limit = 2 + 20 + seconds*(addressRate+2)
				}
				require.Greater(t, int(sent.Load()), 10*limit)
				require.LessOrEqual(t, int(queries.Load()), limit)
			})
		})
	}
}

// A client that closes its connection during the query of an unknown name causes no more queries than one that waits.
func TestClientsThatLeaveCauseFewQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var queries atomic.Int32
		p := newProcess(t, nil, func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
			queries.Add(1)
			time.Sleep(time.Millisecond)
			return knownCallers(ctx, name, forList)
		})
		p.deferred.findExisting = knownCallers.Existing
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		login := func(ctx context.Context, name string) error {
			_, err := p.Authenticate(ctx, Login{Name: name, Password: token, Address: prefix("203.0.113.1"), Began: time.Now()})
			return err
		}
		require.NoError(t, login(t.Context(), "sender"))
		for i := range 2 * addressBurst {
			require.Error(t, login(cancelled, fmt.Sprint("nobody", i)))
		}
		synctest.Wait()
		require.EqualValues(t, 1+addressBurst, queries.Load())
		require.NoError(t, login(t.Context(), "sender"))

		p.limiter = newLimiter()
		for range 2 * addressBurst {
			p.Callers.Forget("sender")
			require.Error(t, login(cancelled, "sender"))
		}
		require.NoError(t, login(t.Context(), "submitter"), "cancelled calls with the name of a caller are not counted as failures")
	})
}

// An unknown name fails like a wrong password, whether the guesses differ or are the same. A repeated guess counts
// once.
func TestUnknownNameFailsLikeWrongPassword(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, knownCallers)
		_, err := p.login("submitter", token)
		require.NoError(t, err)
		for address, passwords := range map[string]int{"203.0.113.1": pairBurst + 2, "203.0.113.2": 1} {
			got := map[string][]string{}
			for _, name := range []string{"submitter", "nobody", "admin"} {
				for i := range pairBurst + 2 {
					began := time.Now()
					_, err := p.loginFrom(address, name, fmt.Sprint("guess ", i%passwords))
					require.Equal(t, failureTime, time.Since(began), name)
					got[name] = append(got[name], task.CodeOf(err))
				}
				require.Equal(t, got["submitter"], got[name], name)
			}
			require.Equal(t, passwords > 1, slices.Contains(got["submitter"], CodeTooManyAttempts))
		}
	})
}

// Over the limit of an address too, an error does not show whether there is a caller with the name,
// whether that caller is cached, or whether the database is slow.
func TestUnknownNameFailsLikeWrongPasswordOverLimit(t *testing.T) {
	t.Parallel()
	type result struct {
		code, message string
		retryAfter    time.Duration
		took          time.Duration
	}
	for _, lookup := range []time.Duration{0, failureTime / 2, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, nil, func(ctx context.Context, name string, forList bool) (callers.Caller, error) {
				time.Sleep(lookup)
				return knownCallers(ctx, name, forList)
			})
			_, err := p.login("submitter", token)
			require.NoError(t, err)
			p.limiter.addressBurst = 0
			got := map[string][]result{}
			for _, name := range []string{"submitter", "sender", "gone", "nobody", "admin"} {
				_, err := p.login(name, "first")
				require.Error(t, err)
				time.Sleep(2 * deferredLookupInterval) // names that exist are known from now on
				for i := range 2 * pairBurst {
					began := time.Now()
					_, err := p.login(name, fmt.Sprint("guess ", i))
					r := refusal(t, err)
					got[name] = append(got[name], result{r.Code, r.Message, r.RetryAfter.Round(time.Millisecond), time.Since(began)})
				}
			}
			require.Equal(t, time.Second, got["nobody"][0].retryAfter)
			require.Greater(t, got["nobody"][2*pairBurst-1].retryAfter, time.Second, "the name is also over its limit at the address")
			for name, results := range got {
				require.Equal(t, got["nobody"], results, name)
			}
			_, err = p.login("submitter", token)
			require.NoError(t, err, "a caller with the right password can log in")
			for _, forget := range []func(){func() { time.Sleep(CallerTTL + time.Second) }, p.Callers.ForgetAll} {
				forget()
				_, err = p.login("submitter", token)
				require.NoError(t, err)
			}
		})
	}
}

// Made-up names do not reset the limit of guesses for a name at an address.
func TestMadeUpNamesDoNotResetGuesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, knownCallers)
		fail := func(name, password, address string) {
			a := p.limiter.begin(Login{Name: name, Password: password, Address: prefix(address), Began: time.Now().Add(-time.Hour)})
			_ = a.end(t.Context(), ErrCredentials)
		}
		for i := range 20 * pairBurst {
			fail("admin", fmt.Sprint(i), fmt.Sprint("203.0.113.", i/pairBurst))
		}
		limited := func() (n int) {
			for i := range 20 {
				if _, err := p.loginFrom(fmt.Sprint("203.0.113.", i), "admin", "secret"); task.CodeOf(err) == CodeTooManyAttempts {
					n++
				}
			}
			return n
		}
		require.Equal(t, 20, limited())
		for i := range pairLimit + pairLimit/8 {
			fail(fmt.Sprint("nobody", i), "x", "198.51.100.9")
		}
		require.Equal(t, 20, limited())

		before := len(p.limiter.pairs)
		for _, name := range []string{strings.Repeat("x", 51), "sub\x00mitter", "two words", ""} {
			_, err := p.login(name, "x")
			require.Equal(t, CodeUnauthenticated, task.CodeOf(err))
		}
		require.Len(t, p.limiter.pairs, before, "names that no caller can have are not counted")
	})
}

// The tables of the limiter, of the cache of callers and of the deferred lookups stay small, whatever clients send.
func TestLoginLimiterMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		try := func(i int, err error) {
			a := l.begin(Login{Name: fmt.Sprint("name", i), Password: fmt.Sprint(i), Address: prefix(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)), Began: time.Now().Add(-time.Hour)})
			_ = a.end(t.Context(), err)
		}
		for i := range pairLimit + pairLimit/8 {
			try(i, ErrCredentials)
			try(i, nil)
		}
		require.LessOrEqual(t, len(l.pairs), pairLimit)
		require.LessOrEqual(t, len(l.addresses), addressLimit)
		c := newCallers(nil)
		for i := range callerLimit + callerLimit/8 {
			c.noteExisting(fmt.Sprint(i))
		}
		require.LessOrEqual(t, len(c.known), callerLimit)
		d := &deferredLookups{findExisting: func(context.Context, []string) ([]string, error) { return nil, nil }}
		for i := range 3 * deferredLookupLimit {
			d.add(fmt.Sprint(i), prefix(fmt.Sprintf("10.%d.%d.1", i>>8, i&255)))
		}
		d.mu.Lock()
		require.Len(t, d.names, deferredLookupLimit)
		d.mu.Unlock()
		time.Sleep(3 * deferredLookupInterval)
		d.mu.Lock()
		defer d.mu.Unlock()
		require.Empty(t, d.names)
		require.False(t, d.running)
	})
}

// Addresses that send very many unknown names leave room for a name from another address.
func TestNameFloodLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var found []string
		d := &deferredLookups{
			findExisting: func(_ context.Context, names []string) ([]string, error) { return names, nil },
			onExisting:   func(name string) { found = append(found, name) },
		}
		add := func(name, address string) { d.add(name, prefix(address)) }
		for address := range 4 {
			for i := range deferredLookupLimit {
				add(fmt.Sprint("nobody ", address, i), fmt.Sprint("198.51.100.", address))
			}
		}
		add("new", "203.0.113.9")
		time.Sleep(time.Second) // the Retry-After of the call
		synctest.Wait()
		require.Contains(t, found, "new")
		require.Greater(t, len(found), deferredLookupLimit/2, "several addresses together may use more than half, one address may not")
		time.Sleep(2 * deferredLookupInterval) // until run has returned
	})
}

// The count of failures decreases with time.
func TestLimitedLoginRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, knownCallers)
		for i := range pairBurst {
			_, err := p.login("admin", fmt.Sprint(i))
			require.ErrorIs(t, err, ErrCredentials)
		}
		_, err := p.login("admin", "secret")
		require.Equal(t, CodeTooManyAttempts, task.CodeOf(err))
		time.Sleep(refusal(t, err).RetryAfter)
		_, err = p.login("admin", "secret")
		require.NoError(t, err)
	})
}

// Guesses at a name, even from the same address and before the first login, lock out neither a caller nor an admin with
// a long password. If the long password is given by its hash, this holds only after the password was used in the
// process.
func TestGuessesDoNotLockOutRightPassword(t *testing.T) {
	t.Parallel()
	const long, short = "sixteen letters!", "fifteen letters"
	longHash, err := HashPassword(long, MinHashIterations)
	require.NoError(t, err)
	shortHash, err := HashPassword(short, MinHashIterations)
	require.NoError(t, err)
	for what, c := range map[string]struct {
		name, password, hash string
		usedBefore           bool   // log in before the guesses
		code                 string // of the login after the guesses, from the same address; "" = it succeeds
	}{
		"the token of a caller":                         {name: "submitter", password: token},
		"a long password":                               {name: "admin", password: long},
		"a short password":                              {name: "admin", password: short, code: CodeTooManyAttempts},
		"a short password that was used":                {name: "admin", password: short, usedBefore: true, code: CodeTooManyAttempts},
		"the hash of a long password that was used":     {name: "admin", password: long, hash: longHash, usedBefore: true},
		"the hash of a long password that was not used": {name: "admin", password: long, hash: longHash, code: CodeTooManyAttempts},
		"the hash of a short password that was used":    {name: "admin", password: short, hash: shortHash, usedBefore: true, code: CodeTooManyAttempts},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, nil, knownCallers)
				p.password = c.password
				if c.hash != "" {
					hash, err := ParsePasswordHash(c.hash)
					require.NoError(t, err)
					p.password, p.hash = "", hash
				}
				if c.usedBefore {
					_, err := p.login(c.name, c.password)
					require.NoError(t, err)
				}
				for i := range 3 * pairBurst {
					_, err := p.login(c.name, fmt.Sprint("a guess of more than 15 characters ", i))
					want := CodeUnauthenticated
					if i >= pairBurst {
						want = CodeTooManyAttempts
						require.LessOrEqual(t, refusal(t, err).RetryAfter, pairEvery)
					}
					require.Equal(t, want, task.CodeOf(err))
				}
				_, err := p.login(c.name, c.password)
				require.Equal(t, c.code, task.CodeOf(err))
				_, err = p.loginFrom("203.0.113.9", c.name, c.password)
				require.NoError(t, err, "from another address")
			})
		})
	}
}
