package retry

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDelayDoublesUpToTheLimit(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute, 1 << 40: 5 * time.Minute,
	} {
		require.Equal(t, want, Delay(time.Second, 5*time.Minute, n), n)
	}
}

func TestJitterAddsUpToAQuarter(t *testing.T) {
	t.Parallel()
	require.Zero(t, Jitter(0))
	for range 100 {
		got := Jitter(time.Minute)
		require.GreaterOrEqual(t, got, time.Minute)
		require.LessOrEqual(t, got, 75*time.Second)
	}
}

func TestAfterReadsBothFormsWithinTheLimit(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	require.Zero(t, After(http.Header{}, now, time.Hour))
	for value, want := range map[string]time.Duration{
		"":                                 0,
		"0":                                0,
		"30":                               30 * time.Second,
		"86400":                            24 * time.Hour,
		"86401":                            24 * time.Hour,
		"99999999999999999999999":          24 * time.Hour,
		"-5":                               0,
		"1.5":                              0,
		"soon":                             0,
		"Sun, 01 Mar 2026 12:00:10 GMT":    10 * time.Second,
		"Sunday, 01-Mar-26 12:10:00 GMT":   10 * time.Minute,
		"Sun, 01 Mar 2026 11:59:59 GMT":    0,
		"Mon, 01 Mar 2027 12:00:00 GMT":    24 * time.Hour,
		"Fri, 01 Mar 9999 12:00:00 GMT":    24 * time.Hour,
		"2026-03-01T12:00:10Z":             0,
		"Sun, 01 Mar 2026 12:00:10 GMT, 5": 0,
	} {
		require.Equal(t, want, After(http.Header{"Retry-After": {value}}, now, 24*time.Hour), value)
	}
}

func TestSecondsRoundsUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{-time.Second: 0, 0: 0, 1: 1, time.Second: 1, 1100 * time.Millisecond: 2} {
		require.Equal(t, want, Seconds(d), d)
	}
}
