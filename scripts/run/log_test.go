package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimitLogCopiesAndEmptiesLongLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, err := openLog(dir, "sendonce.log")
	require.NoError(t, err)
	defer log.Close()
	name := filepath.Join(dir, "sendonce.log")
	text := func(name string) string {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(b)
	}
	for n := range 3 {
		line := fmt.Sprint("line ", n, strings.Repeat(".", 100), "\n")
		fmt.Fprint(log, line)
		require.NoError(t, limitLog(name, 100))
		require.Empty(t, text(name))
		require.Equal(t, line, text(name+".1"), "the new copy must replace the one before")
		fmt.Fprint(log, "short\n")
		require.NoError(t, limitLog(name, 100))
		require.Equal(t, "short\n", text(name))
		require.NoError(t, os.Truncate(name, 0))
	}
	require.NoError(t, limitLog(filepath.Join(dir, "none.log"), 100))
}
