package fn

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// djangosHash is Django's, of the password "lètmein" with 1,000 iterations.
const djangosHash = "pbkdf2_sha256$1000$seasalt2$ABPNVLVV1vRC5OnBCpgwRvsTOJaXds28OSzNig3GR2M="

func TestAHashLetsItsPasswordIn(t *testing.T) {
	t.Parallel()
	hash, err := hashPassword("secret", leastIterations)
	require.NoError(t, err)
	h := startHouse(t, func(c *Config) { c.Password, c.PasswordHash = "", hash }, greeter())
	for range 2 {
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "Secret")).status)
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", "")).status)
		require.Equal(t, 401, h.call("PUT", "/api/v1/empty", "", as("admin", hash)).status, "it is no password itself")
		require.Equal(t, 204, h.call("PUT", "/api/v1/empty", "").status)
		require.Equal(t, 200, h.call("POST", "/api/v1/greet", `{"name":"a"}`, as("submitter", "token")).status)
	}
	require.NotContains(t, h.log.String(), hash)
}

func TestAHashOfAnotherProgramIsRead(t *testing.T) {
	t.Parallel()
	h, err := parsePasswordHash(djangosHash)
	require.NoError(t, err)
	right, err := h.matches(t.Context(), "lètmein")
	require.NoError(t, err)
	require.True(t, right)
}

func TestTwoHashesOfAPasswordDiffer(t *testing.T) {
	t.Parallel()
	one, err := hashPassword("secret", leastIterations)
	require.NoError(t, err)
	two, err := hashPassword("secret", leastIterations)
	require.NoError(t, err)
	require.NotEqual(t, one, two)
}

func TestWhatIsNoHashIsRefused(t *testing.T) {
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
func TestGuessesOfAHashedPasswordTakeNoMoreThanTheirShare(t *testing.T) {
	t.Parallel()
	text, err := hashPassword("secret", 20*leastIterations)
	require.NoError(t, err)
	h, err := parsePasswordHash(text)
	require.NoError(t, err)
	guess, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began, computed := time.Now(), 0
	for {
		right, err := h.matches(guess, "wrong")
		if err != nil {
			break
		}
		require.False(t, right)
		computed++
	}
	once := time.Now()
	_, err = hashPassword("wrong", 20*leastIterations)
	require.NoError(t, err)
	require.Less(t, time.Duration(computed)*time.Since(once), time.Since(began), "guess after guess without a pause")

	require.Eventually(t, func() bool {
		right, err := h.matches(t.Context(), "secret")
		return err == nil && right
	}, waitAtMost, tick)
	h.turn <- struct{}{} // a guess is computed
	right, err := h.matches(t.Context(), "secret")
	require.NoError(t, err)
	require.True(t, right)
	right, err = h.matches(t.Context(), "wrong")
	require.NoError(t, err)
	require.False(t, right, "and wrong ones cost nothing either from then on")
}

func TestAPasswordDoesNotWaitLongForOthers(t *testing.T) {
	t.Parallel()
	text, err := hashPassword("secret", leastIterations)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		h, err := parsePasswordHash(text)
		require.NoError(t, err)
		h.turn <- struct{}{}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, err := h.matches(t.Context(), "secret")
				require.ErrorContains(t, err, "try again")
			})
		}
		began := time.Now()
		all.Wait()
		require.Equal(t, passwordTurn, time.Since(began))
	})
}
