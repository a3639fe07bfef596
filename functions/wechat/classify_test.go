package wechat

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If our clock is ahead of WeChat's, the queue must not be paused for a second day.
func TestQuotaPauseEndsAfterMidnightInShanghai(t *testing.T) {
	t.Parallel()
	for now, want := range map[string]string{
		"2026-11-20T15:59:59Z":      "2026-11-20T16:01:00Z",
		"2026-11-20T16:00:00Z":      "2026-11-20T16:01:00Z",
		"2026-11-20T16:00:30Z":      "2026-11-20T16:01:00Z",
		"2026-11-20T16:01:00Z":      "2026-11-21T16:01:00Z",
		"2026-12-31T12:00:00Z":      "2026-12-31T16:01:00Z",
		"2028-02-28T20:00:00-08:00": "2028-02-29T16:01:00Z",
	} {
		at, err := time.Parse(time.RFC3339, now)
		require.NoError(t, err)
		require.Equal(t, want, quotaUntil(at).UTC().Format(time.RFC3339), now)
	}
}

// A task that is released without a delay would be claimed in a loop.
func TestReleaseHasADelayUnlessTheQueueIsPaused(t *testing.T) {
	t.Parallel()
	for errcode, v := range verdicts {
		switch v.class {
		case throttled, away, tokenRefused:
			require.Positive(t, v.retryAfter, strconv.Itoa(errcode))
		default:
			require.Zero(t, v.retryAfter, strconv.Itoa(errcode))
		}
	}
}
