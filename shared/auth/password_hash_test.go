package auth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

// djangoHash was made by Django, of the password "lètmein" with 1,000 iterations.
const djangoHash = "pbkdf2_sha256$1000$seasalt2$ABPNVLVV1vRC5OnBCpgwRvsTOJaXds28OSzNig3GR2M="

func TestDjangoHashIsRead(t *testing.T) {
	t.Parallel()
	h, err := ParsePasswordHash(djangoHash)
	require.NoError(t, err)
	sum, err := h.derive("lètmein", h.iterations)
	require.NoError(t, err)
	require.Equal(t, h.sum, sum)
}

func TestPasswordHashesAreSalted(t *testing.T) {
	t.Parallel()
	one, err := HashPassword("secret", MinHashIterations)
	require.NoError(t, err)
	two, err := HashPassword("secret", MinHashIterations)
	require.NoError(t, err)
	require.NotEqual(t, one, two)
}

func TestInvalidHashIsRefused(t *testing.T) {
	t.Parallel()
	const sum = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	for _, text := range []string{
		"secret", "pbkdf2_sha256", "pbkdf2_sha1$1000$salt$" + sum, "pbkdf2_sha256$999$salt$" + sum, "pbkdf2_sha256$10000001$salt$" + sum,
		"pbkdf2_sha256$x$salt$" + sum, "pbkdf2_sha256$1000$$" + sum, "pbkdf2_sha256$1000$salt$AAAA", "pbkdf2_sha256$1000$salt$%%%", "pbkdf2_sha256$1000$salt$" + sum + "$",
	} {
		_, err := ParsePasswordHash(text)
		require.ErrorContains(t, err, "sendonce hash-password", text)
	}
}

const (
	hashTime = 200 * time.Millisecond // to compute a hash, in these tests
	hashTurn = turnLength * hashTime
)

// hashProcess is a process whose admin's password, "secret", is given by its hash. Computing a hash
// takes hashTime.
type hashProcess struct {
	*process
	computed atomic.Int32 // hashes
}

// withHash runs a test in synctest.Test, where times are exact. Before the test, the process has measured how long
// computing a hash takes.
func withHash(t *testing.T, test func(*testing.T, *hashProcess)) {
	t.Helper()
	text, err := HashPassword("secret", MinHashIterations)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		hash, err := ParsePasswordHash(text)
		require.NoError(t, err)
		h := &hashProcess{process: newProcess(t, hash, knownCallers)}
		h.hash.derive = func(password string, iterations int) ([]byte, error) {
			if iterations == MinHashIterations {
				h.computed.Add(1)
			}
			time.Sleep(hashTime / MinHashIterations * time.Duration(iterations))
			if password == "secret" {
				return h.hash.sum, nil
			}
			return nil, nil
		}
		h.limiter.addressBurst, h.limiter.totalBurst = 1e6, 1e6
		_, err = h.login("anybody", "measures a computation")
		require.Equal(t, CodeUnauthenticated, task.CodeOf(err))
		test(t, h)
	})
}

// flood makes calls from n addresses until end is called. Each address makes one call at a time.
func (h *hashProcess) flood(n int, name func(address, call int) string) (end func()) {
	stop, all := make(chan struct{}), sync.WaitGroup{}
	for address := range n {
		all.Go(func() {
			for call := 0; ; call++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					_, _ = h.loginFrom(fmt.Sprint("198.51.100.", address), name(address, call), fmt.Sprint("guess ", call))
				}
			}
		})
	}
	return func() { close(stop); all.Wait() }
}

func TestHashingOfGuessesIsLimited(t *testing.T) {
	t.Parallel()
	withHash(t, func(t *testing.T, h *hashProcess) {
		end := h.flood(20, func(int, int) string { return "admin" })
		time.Sleep(10 * hashTurn)
		require.LessOrEqual(t, h.computed.Load(), int32(2*11), "one in each turn of the two queues")
		end()

		time.Sleep(time.Minute)
		_, err := h.login("admin", "secret")
		require.NoError(t, err)
		before, began := h.computed.Load(), time.Now()
		_, err = h.login("admin", "secret")
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		_, err = h.login("admin", "wrong")
		require.Equal(t, CodeUnauthenticated, task.CodeOf(err))
		require.Equal(t, failureTime, time.Since(began))
		require.Equal(t, before, h.computed.Load(), "once the right password is known, nothing is computed")
	})
}

// The first login of the admin in a new process succeeds whatever others send.
func TestGuessersDoNotDelayFirstLoginOfAdmin(t *testing.T) {
	t.Parallel()
	admin := func(int, int) string { return "admin" }
	for what, c := range map[string]struct {
		addresses    int
		name         func(address, call int) string
		flood, limit time.Duration // how long the flood lasts before the login; how long the login may take
	}{
		"unknown names":         {60, func(address, call int) string { return fmt.Sprint("nobody", address, "-", call) }, time.Second, hashTime},
		"the name of the admin": {60, admin, 100 * hashTurn, hashTime},
		"the name of the admin, from one other address": {1, admin, 0, hashTurn + hashTime},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			withHash(t, func(t *testing.T, h *hashProcess) {
				end := h.flood(c.addresses, c.name)
				defer end()
				time.Sleep(c.flood)
				began := time.Now()
				_, err := h.login("admin", "secret")
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(began), c.limit)
			})
		})
	}
}

func TestPasswordCheckWaitIsBounded(t *testing.T) {
	t.Parallel()
	withHash(t, func(t *testing.T, h *hashProcess) {
		const calls = 20
		spent := func() float64 { return h.limiter.total.level(time.Now(), 0) }
		before := spent()
		var all sync.WaitGroup
		var refused atomic.Int32
		for i := range calls {
			all.Go(func() {
				began := time.Now()
				if _, err := h.login("admin", fmt.Sprint(i)); task.CodeOf(err) == task.CodeServerBusy {
					refused.Add(1)
					require.Equal(t, passwordWait, time.Since(began))
				}
			})
		}
		all.Wait()
		require.EqualValues(t, calls-4, refused.Load(), "all but the first turn and the three that begin within passwordWait")
		require.Equal(t, before+calls, spent(), "a call without a turn counts as a failure of its address")
	})
}

// concurrentCalls are calls that start has begun.
type concurrentCalls struct {
	all     sync.WaitGroup
	waiting atomic.Int32 // calls that have not returned
}

// start begins n calls with a name from an address.
func (c *concurrentCalls) start(h *hashProcess, n int, name, address string) {
	for i := range n {
		c.waiting.Add(1)
		c.all.Go(func() {
			defer c.waiting.Add(-1)
			_, _ = h.loginFrom(address, name, fmt.Sprint("guess ", i))
		})
	}
}

func TestWaitingCallsAreBounded(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		addresses, each int
		name            string
		waiting         int
		login           time.Duration // how long the admin's login takes, which begins 1 ms after failureTime
	}{
		"one address":                       {1, 200, "nobody", waitingPerAddress, hashTime},
		"one address with the admin's name": {1, 200, "admin", waitingPerAddress, hashTurn + hashTime - failureTime - time.Millisecond},
		"many addresses":                    {waitingAddresses - 1, 3, "nobody", waitingAddresses - 1 + waitingMore, hashTime},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			withHash(t, func(t *testing.T, h *hashProcess) {
				var calls concurrentCalls
				for i := range c.addresses {
					calls.start(h, c.each, c.name, fmt.Sprintf("198.51.%d.%d", i/250, i%250))
				}
				time.Sleep(failureTime + time.Millisecond)
				require.Equal(t, c.waiting, int(calls.waiting.Load()))
				began := time.Now()
				_, err := h.login("admin", "secret")
				require.NoError(t, err, "the admin can log in from another address")
				require.Equal(t, c.login, time.Since(began))
				calls.all.Wait()
				require.Zero(t, h.hash.waiting)
				require.Empty(t, h.hash.byAddress)
			})
		})
	}
}

// A call that may not wait is refused after failureTime. Neither the time nor the error shows whether its name exists.
func TestCallBeyondWaitingLimitIsRefused(t *testing.T) {
	t.Parallel()
	withHash(t, func(t *testing.T, h *hashProcess) {
		names := []string{"nobody", "submitter", "gone", "another", "admin"}
		var calls concurrentCalls
		calls.start(h, 2*waitingPerAddress, "nobody", "198.51.100.1")
		time.Sleep(time.Millisecond)
		var all sync.WaitGroup
		for _, name := range names {
			for _, password := range []string{"wrong", "secret"} {
				all.Go(func() {
					began := time.Now()
					_, err := h.loginFrom("198.51.100.1", name, password)
					require.Equal(t, task.Busy("too many passwords wait to be checked, try again"), err, name)
					require.Equal(t, failureTime, time.Since(began), name)
				})
			}
		}
		all.Go(func() {
			began := time.Now()
			_, err := h.loginFrom("198.51.100.1", "submitter", token)
			require.NoError(t, err, "a caller with a token need not wait")
			require.Zero(t, time.Since(began))
		})
		all.Wait()
		began := time.Now()
		_, err := h.login("admin", "secret")
		require.NoError(t, err)
		require.Equal(t, hashTime, time.Since(began), "the refused calls have used up no turn")
		calls.all.Wait()
	})
}

// Concurrent calls, such as those of the console, all succeed when the first call does.
func TestConcurrentFirstLoginsOfAdminSucceed(t *testing.T) {
	t.Parallel()
	withHash(t, func(t *testing.T, h *hashProcess) {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				began := time.Now()
				_, err := h.login("admin", "secret")
				require.NoError(t, err)
				require.Equal(t, hashTime, time.Since(began))
			})
		}
		all.Wait()
		require.LessOrEqual(t, h.computed.Load(), int32(2))
	})
}

// The time of a response must not show which name is the admin's.
func TestWrongPasswordTakesSameTimeForEveryName(t *testing.T) {
	t.Parallel()
	type result struct {
		code string
		took time.Duration
	}
	names := []string{"nobody", "submitter", "gone", "another", "admin"}
	for _, burst := range []float64{0, 1e6} { // 0 = the address has failed too often
		withHash(t, func(t *testing.T, h *hashProcess) {
			for _, name := range names[:4] {
				_, _ = h.loginFrom("203.0.113.1", name, "makes the name known")
			}
			time.Sleep(time.Second)
			require.Zero(t, h.computed.Load())
			h.limiter.addressBurst = burst
			got := map[string][]result{}
			for _, name := range names {
				try := func(password string) result {
					began := time.Now()
					_, err := h.login(name, password)
					return result{task.CodeOf(err), time.Since(began)}
				}
				for _, password := range []string{"one", "two", strings.Repeat("x", MaxPasswordLength+1), "two", "three"} {
					got[name] = append(got[name], try(password))
				}
				atOnce := make([]result, 6)
				var all sync.WaitGroup
				for i := range atOnce {
					all.Go(func() { atOnce[i] = try(fmt.Sprint("guess ", i)) })
				}
				all.Wait()
				slices.SortFunc(atOnce, func(a, b result) int {
					return cmp.Or(cmp.Compare(a.took, b.took), cmp.Compare(a.code, b.code))
				})
				got[name] = append(got[name], atOnce...)
			}
			require.Equal(t, failureTime+hashTime, got["admin"][0].took)
			for _, name := range names {
				require.Equal(t, got["admin"], got[name], name)
			}
			_, err := h.loginFrom("203.0.113.7", "nobody", "secret")
			require.Error(t, err)
			before := h.computed.Load()
			_, err = h.loginFrom("203.0.113.8", "admin", "secret")
			require.NoError(t, err)
			require.Equal(t, before+1, h.computed.Load(), "the right password was not remembered for another name")
		})
	}
}
