package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 30, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string][2]string{ // ahead, ago
		"30m": {"2026-01-30T00:30:00Z", "2026-01-29T23:30:00Z"}, "2h": {"2026-01-30T02:00:00Z", "2026-01-29T22:00:00Z"},
		"3d": {"2026-02-02T00:00:00Z", "2026-01-27T00:00:00Z"}, "1.5d": {"2026-01-31T12:00:00Z", "2026-01-28T12:00:00Z"},
		"2026-01-31T08:00+08:00":  {"2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z"},
		"2026-01-31t08:00:30z":    {"2026-01-31T08:00:30Z", "2026-01-31T08:00:30Z"},
		"2026-01-31 08:00 +08:00": {"2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z"},
	} {
		for i, direction := range []time.Duration{ahead, ago} {
			at, ok := parseTime(text, now, direction)
			require.True(t, ok, text)
			require.Equal(t, want[i], at.UTC().Format(time.RFC3339), text)
		}
	}
	for _, text := range []string{
		"tomorrow", "yesterday", "-2h", "0d", "d", "2026-01-31T08:00", "2026-01-31", "9e99d", "300000d", "-150000d", "1000000d", "2026-01-31T08:00+24:00", "2026-01-31 08:00 -23:60",
	} {
		for _, direction := range []time.Duration{ahead, ago} {
			_, ok := parseTime(text, now, direction)
			require.False(t, ok, text)
		}
	}
}
