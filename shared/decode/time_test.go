package decode

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

// encoding/json reads these times and cannot write them.
func TestTimesWithAnOffsetOfADayAreRefused(t *testing.T) {
	t.Parallel()
	want := []task.Field{{Name: "at", Message: badTime}}
	for _, offset := range []string{"+24:00", "-24:00", "+23:60", "-23:60"} {
		_, bad := decodeShape(`{"at":"2023-12-01T10:00:00` + offset + `"}`)
		require.Equal(t, want, bad, offset)
		err := PlanOf[shape]().Parameters(Request{Query: "at=2023-12-01T10:00:00%2B" + offset[1:]}, &shape{})
		require.NotNil(t, err, offset)
		require.Equal(t, want, err.Fields, offset)
	}
	for _, offset := range []string{"+23:59", "-23:59"} {
		_, bad := decodeShape(`{"at":"2023-12-01T10:00:00` + offset + `"}`)
		require.Empty(t, bad, offset)
	}
}
