package functions

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
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

// A line of the documents works as it stands beside `make run`: the API is on
// 8000, the sink on 8001, and `make example` on 8081 and 8082.
func TestExamplesUseThePortsOfMakeRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../README.md", "../deploy/README.md", "../scripts/sender/flags.go", "../scripts/example/main.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(`(?:127\.0\.0\.1|localhost):(\d+)`).FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, []string{"8000", "8001", "8081", "8082", "5432"}, match[1], "%s: %s", name, match[0])
		}
	}
}

// The points service of `make example` reads msg.orders.paid and warns of bodies
// that are not its own.
func TestReadmeUsesASubjectThatMakeExampleDoesNotRead(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.NotRegexp(t, `"to": *"msg\.orders\.`, string(text))
}
