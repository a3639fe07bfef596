package functions

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
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
