package wechat

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheQuotaBeginsAnewAtMidnightInShanghai(t *testing.T) {
	t.Parallel()
	for now, want := range map[string]string{
		"2026-11-20T15:59:59Z":      "2026-11-20T16:00:00Z",
		"2026-11-20T16:00:00Z":      "2026-11-21T16:00:00Z",
		"2026-11-20T23:59:59+08:00": "2026-11-20T16:00:00Z",
		"2026-12-31T12:00:00Z":      "2026-12-31T16:00:00Z",
		"2028-02-28T20:00:00-08:00": "2028-02-29T16:00:00Z",
	} {
		at, err := time.Parse(time.RFC3339, now)
		require.NoError(t, err)
		require.Equal(t, want, nextMidnight(at).UTC().Format(time.RFC3339), now)
	}
}

// A clock that is ahead of WeChat's must not cost a day.
func TestASpentQuotaIsTriedAgainALittleAfterMidnight(t *testing.T) {
	t.Parallel()
	for now, want := range map[string]string{
		"2026-11-20T15:59:59Z": "2026-11-20T16:01:00Z",
		"2026-11-20T16:00:30Z": "2026-11-20T16:01:00Z",
		"2026-11-20T16:01:00Z": "2026-11-21T16:01:00Z",
	} {
		at, err := time.Parse(time.RFC3339, now)
		require.NoError(t, err)
		require.Equal(t, want, quotaUntil(at).UTC().Format(time.RFC3339), now)
	}
}

func TestEveryClassHasAName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for c := sent; c <= unknown; c++ {
		require.NotEmpty(t, c.String())
		require.False(t, seen[c.String()])
		seen[c.String()] = true
	}
}

// What is released at once would be claimed at once, again and again; a paused
// queue is not.
func TestWhatIsReleasedWaits(t *testing.T) {
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
