package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASecretIsMadeOnceAndForItsOwnerAlone(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	made := 0
	fresh := func() string { made++; return newEncryptionKey() }
	path, err := secretFile(home, "key", fresh)
	require.NoError(t, err)
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, first, 44)
	again, err := secretFile(home, "key", fresh)
	require.NoError(t, err)
	require.Equal(t, path, again)
	second, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, 1, made)
	for _, name := range []string{path, filepath.Dir(path)} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, name)
	}
}
