package console

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCSVMarksFormulas(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\t=1": "'\t=1", "\r=1": "'\r=1", "\n=1": "'\n=1",
		"＝1+1": "'＝1+1", "＋1": "'＋1", "－1": "'－1", "＠x": "'＠x",
		";=1": ";'=1", "a;=1": "a;'=1", "a\t=1": "a\t'=1", "a;＝1": "a;'＝1",
		"": "", "138****8000": "138****8000", "2026-01-31T08:00:00+08:00": "2026-01-31T08:00:00+08:00", "a; b=1": "a; b=1",
	} {
		require.Equal(t, []string{want}, csvSafe(value))
	}
}
