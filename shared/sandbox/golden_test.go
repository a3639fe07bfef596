package sandbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiffShowsOnlyLinesThatDiffer(t *testing.T) {
	t.Parallel()
	text := diff(t, "1\n2\n3\n4\n", "1\n3\n4\n5\n")
	require.Regexp(t, `(?s)^--- a.*\n\+\+\+ b.*\n@@ .*\n-2\n@@ .*\n\+5\n$`, text)
}
