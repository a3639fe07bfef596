package functions

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
)

var (
	update  = flag.Bool("update", false, "rewrite what is generated in README.md")
	writing sync.Mutex // of README.md
)

// readmeHas compares what stands in README.md between the marks of name.
func readmeHas(t *testing.T, name, want string) {
	t.Helper()
	writing.Lock()
	defer writing.Unlock()
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	table, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if *update {
		require.NoError(t, os.WriteFile("../README.md", []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, table, "run make golden")
}

func TestReadmeListsEverySetting(t *testing.T) {
	t.Parallel()
	want, err := exec.CommandContext(t.Context(), binary(t), "config").Output()
	require.NoError(t, err)
	readmeHas(t, "settings", string(want))
}

func TestReadmeSaysWhatNeedsWhichNATS(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| nats-server | needed for | with an older one |\n|---|---|---|\n")
	for _, f := range bus.Features() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.Since, f.Needs, f.Without)
	}
	readmeHas(t, "nats", b.String())
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
