package sandbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, a, b, want string }{
		{"same", "1\n2\n", "1\n2\n", ""},
		{"changed", "1\n2\n3\n", "1\ntwo\n3\n", "@@ line 2\n-2\n+two\n"},
		{"added and removed", "1\n2\n3\n4\n", "1\n3\n4\n5\n", "@@ line 2\n-2\n@@ line 5\n+5\n"},
		{"empty file", "", "1\n", "@@ line 1\n+1\n"},
		{"no newline at the end", "1\n", "1", "@@ line 1\n-1\n-\n+1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, diff(c.a, c.b))
		})
	}
}
