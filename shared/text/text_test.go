package text

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ab", Cut("abc", 2))
	require.Equal(t, "你好", Cut("你好吗", 2))
	require.Equal(t, "a\uFFFD", Cut("a\xff", 2))
	require.Equal(t, "abc", Cut("abc", 3))
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	require.Equal(t, "你好  [2Jworld 👍", Printable("你好\n\x1b[2Jworld\u202e👍", ' '))
	require.Equal(t, "te\uFFFDxt", Printable("te\x00xt", '\uFFFD'))
}

func TestLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "two lines [2J of text", Line(" two\r\nlines\t\x1b[2J \x00of\xff text\n"))
}
