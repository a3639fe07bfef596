package fn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

type senderConfig struct {
	Retries int             `envconfig:"FNTEST_RETRIES" default:"3" desc:"retries | before a failure is final"`
	Backoff []time.Duration `envconfig:"FNTEST_BACKOFF" default:"5s,30s" desc:"waits between retries"`
	Key     string          `envconfig:"FNTEST_KEY" secret:"true" desc:"key of the provider"`
}

func (c *senderConfig) Validate() []task.Field {
	var bad []task.Field
	if c.Retries > 10 {
		bad = append(bad, task.Field{Name: "FNTEST_RETRIES", Message: "must be at most 10"})
	}
	if c.Key == "weak" {
		bad = append(bad, task.Field{Name: "FNTEST_KEY", Message: "is too weak"})
	}
	return bad
}

// configured returns a function with the settings of senderConfig.
func configured(name string) Function {
	return HTTP(name, func(*Env, senderConfig) Routes { return Routes{"GET /" + name: Parameters(Admin, greet)} })
}

func setAll(t *testing.T, values map[string]string) {
	for name, value := range values {
		t.Setenv(name, value)
	}
}

func TestEveryBadSettingIsReported(t *testing.T) {
	setAll(t, map[string]string{
		"PORT": "80a", "APP_PORT": "70000", "DEBUG": "maybe", "SENDONCE_MAX_CALLS": "1.5", "SENDONCE_DRAIN_TIMEOUT": "25",
		"TRUSTED_PROXIES": "proxy", "RETRY_BACKOFF": "wechat=5", "SENDONCE_MAX_CALL": "1", "APP_HSOT": "::1", "WECHAT_X": "", "TWO_PHASE_X": "", "BASIC_AUTH_USER": "x",
		"FUNCTION_TARGET": "c", "DATABASE_URL": "postgres://u:hunter2@h:x/db",
		"FNTEST_RETRIES": "many", "FNTEST_BACKOFF": "5s,soon", // not reported: a function that is not served does not read its settings
	})
	_, _, err := Prepare(nil, []Function{configured("b"), configured("a")}, true)
	require.EqualError(t, err, `settings are wrong:
  APP_PORT is "70000" but must be an integer between 0 and 65535
  PORT is "80a" but must be an integer between 0 and 65535
  DEBUG is "maybe" but must be true or false
  TRUSTED_PROXIES is "proxy" but must be networks such as 10.0.0.0/8 or fd00::/8, separated by commas; "proxy" is no network
  RETRY_BACKOFF is "wechat=5" but must say how long the retries of each queue wait, as "wechat=5s,30s,2m,10m;*=0", where * is every other queue; "5" is not a time from 0 to 168h
  SENDONCE_MAX_CALLS is "1.5" but must be an integer
  SENDONCE_DRAIN_TIMEOUT is "25" but must be a duration such as 500ms, 25s or 2m
  APP_HSOT is no setting; rename it to APP_HOST, or set APP_HOST too to keep it; `+"`sendonce config`"+` lists them all
  BASIC_AUTH_USER is no setting; `+"`sendonce config`"+` lists them all
  SENDONCE_MAX_CALL is no setting; `+"`sendonce config`"+` lists them all
  TWO_PHASE_X is no setting; `+"`sendonce config`"+` lists them all
  WECHAT_X is no setting; `+"`sendonce config`"+` lists them all
  FUNCTION_TARGET is "c" but must be the name of a function: a, b
  DATABASE_URL holds a password, and the functions log in as roles with passwords of their own: leave user and password out of the URL and set SENDONCE_HOT_PASSWORD and the passwords of the other roles, or, to log in as the user of the URL, set SENDONCE_HOT_ROLE and SENDONCE_READ_ROLE to the empty string
  BASIC_AUTH_PASSWORD is empty or not set; choose the password of the built-in admin, there is no default, or give BASIC_AUTH_PASSWORD_HASH
  DATABASE_URL `+databaseURLProblem(t))
	require.NotContains(t, err.Error(), "hunter2")
}

// databaseURLProblem returns the error of the store about the URL of the environment.
func databaseURLProblem(t *testing.T) string {
	_, err := NewEnv(settings.Config{DatabaseURL: "postgres://u:hunter2@h:x/db"}, nil)
	require.Error(t, err)
	return err.Error()[len("DATABASE_URL: "):]
}

func TestBadSettingsOfServedFunctionAreErrors(t *testing.T) {
	setAll(t, map[string]string{"FNTEST_RETRIES": "11", "FNTEST_BACKOFF": "5s,soon", "FNTEST_KEY": "weak",
		"DATABASE_URL": "postgres://localhost/x", "BASIC_AUTH_PASSWORD": "secret"})
	functions := []Function{configured("a"), greeter()}
	_, _, err := Prepare(nil, functions, true)
	require.EqualError(t, err, "settings are wrong:\n"+`  FNTEST_BACKOFF is "5s,soon" but must be a list separated by commas, where each must be a duration such as 500ms, 25s or 2m`)
	t.Setenv("FNTEST_BACKOFF", "5s")
	_, _, err = Prepare(nil, functions, true)
	require.EqualError(t, err, "settings are wrong:\n  FNTEST_RETRIES is \"11\" but must be at most 10\n  FNTEST_KEY is too weak", "a secret's value is not shown")
	t.Setenv("FUNCTION_TARGET", "greeter")
	env, served, err := Prepare(nil, functions, true)
	require.NoError(t, err)
	defer env.Close()
	require.Len(t, served, 1)
	require.Equal(t, "greeter", served[0].Name)
}

func TestSettingsTableListsEachOnce(t *testing.T) {
	t.Parallel()
	table := config.Table(Settings(nil, []Function{configured("b"), configured("a")}))
	require.Contains(t, table, "| Name | Default | Meaning | Read by |\n|---|---|---|---|\n| `DATABASE_URL` |  | Postgres,")
	require.Contains(t, table, "| `APP_PORT` | `8000` | port to listen on; 0 = a free one | all |\n")
	require.Contains(t, table, "| `FNTEST_RETRIES` | `3` | retries \\| before a failure is final | b, a |\n")
	require.Contains(t, table, "| `FNTEST_KEY` |  | key of the provider; or `FNTEST_KEY_FILE` | b, a |\n")
	require.Regexp(t, "(?s)FNTEST_BACKOFF.*FNTEST_KEY.*FNTEST_RETRIES", table)
}

func TestWrongDeclarationsOfSettingsPanic(t *testing.T) {
	t.Parallel()
	type other struct {
		Retries int `envconfig:"FNTEST_RETRIES" default:"4" desc:"retries"`
	}
	clash := HTTP("clash", func(*Env, other) Routes { return nil })
	require.PanicsWithValue(t, "config: a and clash declare FNTEST_RETRIES differently", func() { Settings(nil, []Function{configured("a"), clash}) })
	require.Panics(t, func() { HTTP("untagged", func(*Env, struct{ Retries int }) Routes { return nil }) })
	type secretNumber struct {
		Pin int `envconfig:"FNTEST_PIN" secret:"true" desc:"pin"`
	}
	require.Panics(t, func() { HTTP("secret", func(*Env, secretNumber) Routes { return nil }) })
}
