package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// WaitLimit is how long a test waits at most for what must happen.
const WaitLimit = time.Minute

// Eventually waits until a condition is true. The test fails if it is not true within WaitLimit. The condition runs in
// the test's goroutine.
func Eventually(t testing.TB, condition func() bool, what ...any) {
	t.Helper()
	eventually(t, 15*time.Millisecond, condition, what...)
}

func eventually(t testing.TB, tick time.Duration, condition func() bool, what ...any) {
	t.Helper()
	for end := time.Now().Add(WaitLimit); !condition(); time.Sleep(tick) {
		if time.Now().After(end) {
			require.Fail(t, "not within "+WaitLimit.String(), what...)
		}
	}
}

// Within returns the next value of a channel. The test fails if there is none within limit.
func Within[T any](t *testing.T, limit time.Duration, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(limit):
		require.Fail(t, "not within "+limit.String(), what)
	}
	return v
}
