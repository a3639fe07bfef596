package fn

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/task"
)

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSecretIsReadFromFile(t *testing.T) {
	setAll(t, map[string]string{
		"BASIC_AUTH_PASSWORD_FILE": secretFile(t, " hunter2 \r\n"), "NATS_PASSWORD_FILE": secretFile(t, "token"), "NATS_PASSWORD": "",
	})
	cfg, problems := configFromEnvironment(nil, nil)
	require.Empty(t, problems)
	require.Equal(t, " hunter2 ", cfg.Password, "only the line end is cut off")
	require.Equal(t, "token", cfg.Bus.Password, "an empty variable is not in the way")

	t.Setenv("FNTEST_KEY_FILE", secretFile(t, "weak"))
	var got senderConfig
	_, _, err := Prepare(nil, []Function{configured("a", &got)}, true)
	require.ErrorContains(t, err, "FNTEST_KEY is too weak")
	require.NotContains(t, err.Error(), "hunter2")
}

func TestSecretFileMustExistAndBeTheOnlySource(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	setAll(t, map[string]string{
		"DATABASE_URL": "postgres://u:hunter2@h/db", "DATABASE_URL_FILE": secretFile(t, "postgres://h/db"),
		"BASIC_AUTH_PASSWORD_FILE": missing, "BASIC_AUTH_USERNAME_FILE": missing,
	})
	_, problems := configFromEnvironment(nil, nil)
	require.Equal(t, []task.Field{
		{Name: "DATABASE_URL_FILE", Message: "and DATABASE_URL are both set; keep one of them"},
		{Name: "BASIC_AUTH_PASSWORD_FILE", Message: "must name a file that can be read: open " + missing + ": no such file or directory"},
		{Name: "BASIC_AUTH_USERNAME_FILE", Message: "is no setting; `sendonce config` lists them all"},
	}, problems)
}

func TestSettingsTableNamesSecretFile(t *testing.T) {
	t.Parallel()
	var got senderConfig
	require.Contains(t, config.Table(Settings(nil, []Function{configured("a", &got)})), "| `FNTEST_KEY` |  | key of the provider; or `FNTEST_KEY_FILE` | a |\n")
	require.Panics(t, func() {
		HTTP("number", func(*Env, struct {
			Pin int `envconfig:"FNTEST_PIN" secret:"true" desc:"pin"`
		}) Routes {
			return nil
		})
	})
}
