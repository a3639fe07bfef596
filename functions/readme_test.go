package functions

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite what is generated in README.md")

func TestReadmeListsEverySetting(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- settings -->\n", "<!-- /settings -->"
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	table, after, found := strings.Cut(rest, end)
	require.True(t, found)
	listed, err := exec.CommandContext(t.Context(), binary(t), "config").Output()
	require.NoError(t, err)
	want := string(listed)
	if *update {
		require.NoError(t, os.WriteFile("../README.md", []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, table, "run make golden")
}
