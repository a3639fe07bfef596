package store

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type timed struct{ At time.Time }

func (t timed) Valid() bool { return ValidTime(t.At) }

func TestListLeavesOutInvalidElements(t *testing.T) {
	t.Parallel()
	var list List[timed]
	require.NoError(t, json.Unmarshal([]byte(`[1, null, {"At":"x"}, {"At":"9999-12-31T23:59:59-01:00"}, {"At":"0000-01-01T00:00:00Z"},
		{"At":"2026-01-01T00:00:00+24:00"}, {"At":"9999-12-31T23:59:59Z"}]`), &list)) // null is the zero time
	var days []string
	for _, element := range list {
		text, err := json.Marshal(element.At.UTC())
		require.NoError(t, err)
		days = append(days, string(text[1:11]))
	}
	require.Equal(t, []string{"0001-01-01", "2025-12-31", "9999-12-31"}, days)
}
