package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDIsAStringOnTheWire(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ID{
		`"0"`: 0, `"7"`: 7, `7`: 7, `9007199254740993`: 9007199254740993, `"9223372036854775807"`: 9223372036854775807, `null`: 0,
	} {
		var id ID
		require.NoError(t, json.Unmarshal([]byte(text), &id), text)
		require.Equal(t, want, id)
		written, err := json.Marshal(id)
		require.NoError(t, err)
		require.Equal(t, `"`+want.String()+`"`, string(written))
	}
	for _, text := range []string{`""`, `"-1"`, `-1`, `"007"`, `"+7"`, `1.0`, `1e3`, `"seven"`, `true`, `[]`, `9223372036854775808`} {
		var id ID
		require.Error(t, json.Unmarshal([]byte(text), &id), text)
	}
}
