package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithPassword(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := filepath.Join(home, "mine")
	settingsOf := func(more ...string) settings {
		t.Helper()
		all := map[string]string{"SENDONCE_HOME": home}
		for _, pair := range more {
			name, value, _ := strings.Cut(pair, "=")
			all[name] = value
		}
		s, err := parseSettings(all)
		require.NoError(t, err)
		return s
	}
	generated, err := settingsOf().withPassword()
	require.NoError(t, err)
	require.Len(t, generated.password, 26)
	again, err := settingsOf().withPassword()
	require.NoError(t, err)
	require.Equal(t, generated.password, again.password, "a later run must use the same password")
	for _, name := range []string{generated.passwordFile, filepath.Dir(generated.passwordFile)} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, name)
	}

	given, err := settingsOf("BASIC_AUTH_PASSWORD=mine").withPassword()
	require.NoError(t, err)
	require.Equal(t, "mine", given.password)
	require.Contains(t, given.serverEnv("postgres://x", "nats://y"), "BASIC_AUTH_PASSWORD=mine")

	const invalid = "" // instead of a password
	for text, want := range map[string]string{"mine\n": "mine", "mine": "mine", "": invalid, "\n": invalid, "one\ntwo\n": invalid} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		s, err := settingsOf("BASIC_AUTH_PASSWORD_FILE=" + file).withPassword()
		if want == invalid {
			require.EqualError(t, err, file+" must contain the password of admin, in one line")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, s.password)
		env := s.serverEnv("postgres://x", "nats://y")
		require.Contains(t, env, "BASIC_AUTH_PASSWORD_FILE="+file)
		require.NotContains(t, strings.Join(env, "\n"), "BASIC_AUTH_PASSWORD=")
	}
	_, err = settingsOf("BASIC_AUTH_PASSWORD_FILE=" + file + ".none").withPassword()
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWithOnlySecretsOf(t *testing.T) {
	t.Parallel()
	env := []string{"PATH=/bin", "SENDONCE_HOT_PASSWORD=a", "SENDONCE_ADMIN_PASSWORD_FILE=/b", "SENDONCE_OWNER_URL=c", "BASIC_AUTH_PASSWORD_FILE=/d", "MY_FILE=e"}
	require.Equal(t, []string{"PATH=/bin", "SENDONCE_HOT_PASSWORD=a", "BASIC_AUTH_PASSWORD_FILE=/d", "MY_FILE=e"}, withOnlySecretsOf(env, "claim"))
	require.Equal(t, []string{"PATH=/bin", "BASIC_AUTH_PASSWORD_FILE=/d", "MY_FILE=e"}, withOnlySecretsOf(env, "trigger"))
	require.Equal(t, env, withOnlySecretsOf(env, "migrate"))
	require.NotContains(t, withOnlySecretsOf(env, functionNames()...), "SENDONCE_OWNER_URL=c")
	require.Contains(t, withOnlySecretsOf(env, functionNames()...), "SENDONCE_ADMIN_PASSWORD_FILE=/b")
}

func TestNetrcOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, "machine 127.0.0.1 login admin password pa:ss\n", netrcOf("admin", "pa:ss"))
	require.Equal(t, "machine 127.0.0.1 login admin password \"a \\\"b\\\\c\"\n", netrcOf("admin", `a "b\c`))
}
