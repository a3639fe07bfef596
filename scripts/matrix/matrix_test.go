package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnpackCreatesListedLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	native := filepath.Join(dir, "package/native")
	require.NoError(t, os.MkdirAll(filepath.Join(native, "lib"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(native, "lib/libpq.so.5.18"), []byte("library"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(native, "pg-symlinks.json"),
		[]byte(`[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"}]`), 0o644))
	require.NoError(t, exec.CommandContext(t.Context(), "tar", "-C", dir, "-czf", filepath.Join(dir, "p.tgz"), "package").Run())
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "package")))

	require.NoError(t, unpack(t.Context(), dir, "p.tgz"))
	text, err := os.ReadFile(filepath.Join(native, "lib/libpq.so.5"))
	require.NoError(t, err)
	require.Equal(t, "library", string(text))
	require.NoFileExists(t, filepath.Join(dir, "p.tgz"))
}

func TestDocsListEveryVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/platform.md")
	require.NoError(t, err)
	for _, version := range versions {
		parts := strings.Split(version, ".")
		require.True(t, strings.Contains(string(text), parts[0]+"."+parts[1]), "docs/platform.md does not name Postgres %s", version)
	}
}
