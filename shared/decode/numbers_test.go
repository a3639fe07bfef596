package decode

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbersThatProgramsFailToReadAreRefused(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		`{"a":[1,-2.5,1e300,-1.7E+300,12345678901234567890,0.1e-300,true,null]}`: false,
		`"1e999"`:                       false,
		`{"1e999\"1e999":"\\"}`:         false,
		strings.Repeat("9", 40):         false,
		strings.Repeat("9", 41):         true,
		`[1,` + strings.Repeat("9", 41): true,
		`{"a":{"b":1e301}}`:             true,
		`1e-301`:                        true,
		`-1e99999999999999999999`:       true,
		`99999999999e300`:               true,
	} {
		if want == false {
			var v any
			require.NoError(t, json.Unmarshal([]byte(value), &v), value)
		}
		var bad BadFields
		bad.Numbers("data", []byte(value), 40)
		require.Equal(t, want, len(bad) == 1, value)
	}
}
