package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseSettingsDefaults(t *testing.T) {
	t.Parallel()
	s, err := parseSettings(map[string]string{"PORT": "", "SENDONCE_HOME": ""})
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, 8000, s.port)
	require.Equal(t, filepath.Join(here, ".sendonce"), s.home)
	require.Equal(t, "admin", s.username)
	require.True(t, s.demoSender)
	require.True(t, s.sink)
	require.False(t, s.procs)
	require.Equal(t, 15*time.Second, s.procsIdle)
	require.Empty(t, s.databaseURL)
}

func TestPortOverridesAppPort(t *testing.T) {
	t.Parallel()
	for want, all := range map[int]map[string]string{1111: {"APP_PORT": "1111"}, 2222: {"APP_PORT": "1111", "PORT": "2222"}} {
		s, err := parseSettings(all)
		require.NoError(t, err)
		require.Equal(t, want, s.port)
	}
	_, err := parseSettings(map[string]string{"APP_PORT": "eighty"})
	require.EqualError(t, err, `APP_PORT is "eighty": it must be a number from 1 to 65535`)
}

func TestEnvironmentOverridesDotEnv(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile(".env", []byte("PORT=1111\nDEMO_SENDER=false\nMAX_RETRY_COUNT=7\n"), 0o600))
	t.Setenv("PORT", "2222")
	s, err := readSettings()
	require.NoError(t, err)
	require.Equal(t, 2222, s.port)
	require.False(t, s.demoSender)
	require.Contains(t, s.serverEnv("postgres://x", "nats://y"), "MAX_RETRY_COUNT=7", "the server gets the other settings of the file")
}

func TestReadSettingsFails(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile(".env", []byte("PORT 1111\n"), 0o600))
	_, err := readSettings()
	require.ErrorContains(t, err, ".env cannot be read")
}

func TestParseSettingsNamesAllErrors(t *testing.T) {
	t.Parallel()
	_, err := parseSettings(map[string]string{"PORT": "eighty", "DEMO_SENDER": "maybe", "SINK": "often", "PROCS": "seven", "PROCS_IDLE": "0s", "BASIC_AUTH_USERNAME": "a:b"})
	require.EqualError(t, err, `PORT is "eighty": it must be a number from 1 to 65535
DEMO_SENDER is "maybe": it must be true or false
SINK is "often": it must be true or false
PROCS is "seven": it must be 1 (a process for each function) or 0 (one process)
PROCS_IDLE is "0s": it must be a duration above 0, such as 15s
BASIC_AUTH_USERNAME is "a:b": it must not contain a colon`)
	for _, port := range []string{"0", "-1", "65536"} {
		_, err := parseSettings(map[string]string{"PORT": port})
		require.ErrorContains(t, err, "from 1 to 65535")
	}
	_, err = parseSettings(map[string]string{"PROCS": "1", "SENDONCE_METRICS": "9464"})
	require.EqualError(t, err, `SENDONCE_METRICS is "9464": with PROCS=1 it must be admin or open, as each function is a process of its own`)
}

func TestServerEnv(t *testing.T) {
	t.Parallel()
	s, err := parseSettings(map[string]string{"FUNCTION_TARGET": "claim", "APP_HOST": "0.0.0.0", "PATH": "/bin", "PORT": "9000"})
	require.NoError(t, err)
	s.passwordFile = "/x/password"
	require.Equal(t, []string{
		"APP_HOST=127.0.0.1", "BASIC_AUTH_PASSWORD_FILE=/x/password", "BASIC_AUTH_USERNAME=admin",
		"DATABASE_URL=postgres://x", "NATS_URL=nats://y", "PATH=/bin", "PORT=9000", "SENDONCE_FUNCTIONS_URL=http://127.0.0.1:9000", "SENDONCE_METRICS=open",
		"SENDONCE_OUTGOING_NETWORKS=127.0.0.1",
	}, s.serverEnv("postgres://x", "nats://y"))
}

func TestReplaceOwnerLogin(t *testing.T) {
	t.Parallel()
	const ownerURL = "postgres://owner:s3cr3t@localhost:5432/shop?sslmode=disable"
	for name, c := range map[string]struct {
		set             map[string]string
		want, forbidden string
	}{
		"generated passwords":    {nil, "SENDONCE_RETENTION_PASSWORD_FILE=", "SENDONCE_HOT_PASSWORD="},
		"a password that is set": {map[string]string{"SENDONCE_HOT_PASSWORD": "mine"}, "SENDONCE_HOT_PASSWORD=mine", "SENDONCE_HOT_PASSWORD_FILE"},
		"one user for all":       {map[string]string{"SENDONCE_HOT_ROLE": ""}, "DATABASE_URL=" + ownerURL, "PASSWORD_FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := map[string]string{"SENDONCE_HOME": t.TempDir()}
			maps.Copy(set, c.set)
			s, err := parseSettings(set)
			require.NoError(t, err)
			env, ownerEnv, err := s.replaceOwnerLogin(s.serverEnv(ownerURL, "nats://y"), ownerURL)
			require.NoError(t, err)
			all := strings.Join(env, "\n")
			require.Contains(t, all, c.want)
			require.NotContains(t, all, c.forbidden)
			require.Equal(t, name == "one user for all", ownerEnv == nil)
			require.Equal(t, ownerEnv == nil, strings.Contains(all, "s3cr3t"), "the server has the password of the owner only if it logs in as the owner")
			again, _, err := s.replaceOwnerLogin(s.serverEnv(ownerURL, "nats://y"), ownerURL)
			require.NoError(t, err)
			require.Equal(t, env, again, "a later run must use the same passwords")
		})
	}
}

func TestAllowsSink(t *testing.T) {
	t.Parallel()
	for networks, allowed := range map[string]bool{
		"": true, "127.0.0.1": true, "10.0.0.0/8, 127.0.0.0/8": true, "0.0.0.0/0": true,
		"10.0.0.0/8": false, "127.0.0.2": false, "::1": false, "nothing": false,
	} {
		s, err := parseSettings(map[string]string{"SENDONCE_OUTGOING_NETWORKS": networks})
		require.NoError(t, err)
		require.Equal(t, allowed, s.allowsSink(), networks)
		if networks != "" {
			require.Contains(t, s.serverEnv("postgres://x", "nats://y"), "SENDONCE_OUTGOING_NETWORKS="+networks)
		}
	}
}
