package fn

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
)

// djangosHash is Django's, of the password "lètmein" with 1,000 iterations.
const djangosHash = "pbkdf2_sha256$1000$seasalt2$ABPNVLVV1vRC5OnBCpgwRvsTOJaXds28OSzNig3GR2M="

func TestHashedPasswordIsAccepted(t *testing.T) {
	t.Parallel()
	hash, err := HashPassword("secret", MinHashIterations)
	require.NoError(t, err)
	h := startServer(t, func(c *settings.Config) { c.Password, c.PasswordHash = "", hash }, greeter())
	for range 2 {
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "Secret")).status)
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "")).status)
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", hash)).status, "it is no password itself")
		require.Equal(t, 204, h.call("PUT", "/api/v1/empty", "").status)
		require.Equal(t, 200, h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("submitter", "token")).status)
	}
	require.NotContains(t, h.log.String(), hash)
}

func TestDjangoHashIsRead(t *testing.T) {
	t.Parallel()
	h, err := parsePasswordHash(djangosHash)
	require.NoError(t, err)
	right, err := h.matches(t.Context(), "lètmein", 0, time.Now())
	require.NoError(t, err)
	require.True(t, right)
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
		_, err := parsePasswordHash(text)
		require.ErrorContains(t, err, "sendonce hash-password", text)
	}
}

// The attacker's passwords are computed one at a time, with pauses, and the
// operator's, once known, is not computed at all.
func TestHashingOfGuessesIsLimited(t *testing.T) {
	t.Parallel()
	text, err := HashPassword("secret", 20*MinHashIterations)
	require.NoError(t, err)
	h, err := parsePasswordHash(text)
	require.NoError(t, err)
	guess, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began, computed := time.Now(), 0
	for {
		right, err := h.matches(guess, "wrong", 0, time.Now())
		if err != nil {
			break
		}
		require.False(t, right)
		computed++
	}
	once := time.Now()
	_, err = HashPassword("wrong", 20*MinHashIterations)
	require.NoError(t, err)
	require.Less(t, time.Duration(computed)*time.Since(once), time.Since(began), "guess after guess without a pause")

	require.Eventually(t, func() bool {
		right, err := h.matches(t.Context(), "secret", 0, time.Now())
		return err == nil && right
	}, waitAtMost, tick)
	h.slot <- struct{}{} // a guess is computed
	right, err := h.matches(t.Context(), "secret", 0, time.Now())
	require.NoError(t, err)
	require.True(t, right)
	right, err = h.matches(t.Context(), "wrong", 0, time.Now())
	require.NoError(t, err)
	require.False(t, right, "and wrong ones cost nothing either from then on")
}

// whileOneIsComputed has a hash of "secret" whose turn another password has.
func whileOneIsComputed(t *testing.T, test func(*testing.T, *passwordHash)) {
	t.Helper()
	text, err := HashPassword("secret", MinHashIterations)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		h, err := parsePasswordHash(text)
		require.NoError(t, err)
		h.slot <- struct{}{}
		test(t, h)
	})
}

func TestPasswordCheckWaitIsBounded(t *testing.T) {
	t.Parallel()
	whileOneIsComputed(t, func(t *testing.T, h *passwordHash) {
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, err := h.matches(t.Context(), "secret", 0, time.Now())
				require.ErrorContains(t, err, "try again")
			})
		}
		began := time.Now()
		all.Wait()
		require.Equal(t, passwordWait, time.Since(began))
	})
}

// Which names there are must not show in the work that a wrong password makes.
func TestWrongPasswordTakesSameTimeForEveryName(t *testing.T) {
	t.Parallel()
	text, err := HashPassword("secret", MinHashIterations)
	require.NoError(t, err)
	h := startServer(t, func(c *settings.Config) { behindProxy(c); c.Password, c.PasswordHash = "", text }, greeter())
	h.env.logins.addressBurst = 3 // also where an address has failed too often
	names := []string{"admin", "nobody", "submitter", "gone", "another"}
	computed := func(call func()) int64 {
		before := h.env.adminHash.computed.Load()
		call()
		return h.env.adminHash.computed.Load() - before
	}
	for _, wrong := range []string{"one", "two", strings.Repeat("x", MaxPasswordLength+1), "two"} {
		work := map[int64][]string{}
		for i, name := range names {
			n := computed(func() {
				status, _ := h.greetAs(as(name, wrong), from(fmt.Sprintf("203.0.113.%d", i%2)))
				require.Contains(t, []int{401, 429}, status, "%q", name)
			})
			work[n] = append(work[n], name)
		}
		require.Len(t, work, 1, "the password %.10q: %q", wrong, work)
	}
	require.Equal(t, int64(1), computed(func() { h.greetAs(as("nobody", "secret"), from("203.0.113.7")) }))
	require.Equal(t, int64(1), computed(func() { h.greetAs(as("nobody", "Secret"), from("203.0.113.7")) }), "another's name with the right password teaches nothing")
	require.Equal(t, int64(1), computed(func() {
		status, _ := h.greetAs(as("admin", "secret"), from("203.0.113.8"))
		require.Equal(t, 200, status)
	}))
	for i, name := range names {
		require.Zero(t, computed(func() { h.greetAs(as(name, "three"), from(fmt.Sprint("203.0.113.", 20+i))) }), name)
	}
	require.Zero(t, computed(func() {
		status, _ := h.greetAs(as("submitter", "token"), from("203.0.113.0"))
		require.Equal(t, 200, status, "where others have guessed")
	}))
}

// Whatever one address tries, another is next in turn.
func TestOneAddressDoesNotBlockPasswordChecks(t *testing.T) {
	t.Parallel()
	whileOneIsComputed(t, func(t *testing.T, h *passwordHash) {
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { _ = h.pretend(t.Context(), "wrong", 1, time.Now()) })
		}
		synctest.Wait()
		all.Go(func() {
			right, err := h.matches(t.Context(), "secret", 2, time.Now())
			require.NoError(t, err)
			require.True(t, right)
			require.LessOrEqual(t, h.computed.Load(), int64(2), "after one of the other address")
		})
		synctest.Wait()
		<-h.slot
		all.Wait()
	})
}
