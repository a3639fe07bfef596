package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// Not parallel: if another test starts a process, that process holds the open ports of this test until its exec.
func TestListenOnSavedPort(t *testing.T) {
	home, out := t.TempDir(), &sandbox.LogBuffer{}
	listen := func(name string) int {
		t.Helper()
		listener, err := listenOnSavedPort(t.Context(), home, name, out)
		require.NoError(t, err)
		require.NoError(t, listener.Close())
		return portOf(listener)
	}
	first := listen("one")
	require.Less(t, first, 32_768, "the system may assign a higher port to a connection while no run has it")
	require.Equal(t, first, listen("one"))
	require.Empty(t, out.String())

	taken, err := listenLocally(t.Context(), first)
	require.NoError(t, err)
	second := listen("one")
	require.NotEqual(t, first, second)
	require.Equal(t, fmt.Sprintf("one       port %d of earlier runs is taken; a new one is used from now on\n", first), out.String())
	require.NoError(t, taken.Close())
	require.Equal(t, second, listen("one"), "the new port is saved")

	for _, damaged := range []string{"", "no port", "65536", "-1"} {
		require.NoError(t, os.WriteFile(filepath.Join(home, "one.port"), []byte(damaged), 0o644))
		third := listen("one")
		require.Equal(t, third, listen("one"))
	}
	require.NotEqual(t, listen("two"), listen("one"))
}

func TestListenOnSavedPortFails(t *testing.T) {
	t.Parallel()
	_, err := listenOnSavedPort(t.Context(), filepath.Join(t.TempDir(), "none"), "one", &sandbox.LogBuffer{})
	require.ErrorIs(t, err, os.ErrNotExist)
}
