package settings

import (
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

func setEnv(t *testing.T, values map[string]string) {
	for name, value := range values {
		t.Setenv(name, value)
	}
}

func TestDefaults(t *testing.T) {
	cfg, problems := Load()
	require.Empty(t, problems)
	require.Equal(t, Config{
		Metrics: "admin", Username: "admin", Host: "0.0.0.0", AppPort: 8000,
		Roles:    Roles{Hot: "sendonce_hot", Read: "sendonce_read", Admin: "sendonce_admin", Retention: "sendonce_retention"},
		MaxConns: 8, MaxCalls: 1024, MemoryMB: 80, MaxWaiting: 2048, CallerShare: 0.25, WaitingMessages: 100_000, WaitingMB: 64, OperatorCallers: 20, WaitingTasks: 1_000_000, DrainTimeout: 25 * time.Second, TaskEvents: store.FinalEvents,
		RetryBackoff:  task.Backoff{"wechat": {5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}},
		RetentionDays: 90, LogDays: 30,
		Bus: bus.Config{Name: "sendonce", Replicas: 1, EventsMB: 128, MessagesMB: 256, UsersMB: 128, AcceptedMB: 256, DeadLettersMB: 32,
			MessagesMaxAge: 168 * time.Hour, UsersMaxAge: 720 * time.Hour, InboxMessages: 10_000},
		TwoPhase: TwoPhase{DefaultAck: "saved", FailOpen: true, Stream: "ACCEPTED", Shards: 1, BatchSize: 500, BatchWait: 2 * time.Millisecond, DedupeWindow: 24 * time.Hour},
		Alerts:   Alerts{FailureRate: task.Limits{"*": 0.2}, MinFinished: 20, Backlog: task.Limits{"*": 0}, StreamFull: 0.8, Window: 5 * time.Minute},
	}, cfg)
	require.Equal(t, "0.0.0.0:8000", cfg.Address())
}

func TestLoadReadsTheEnvironment(t *testing.T) {
	setEnv(t, map[string]string{
		"PORT": "8080", "APP_PORT": "9000", "APP_HOST": "::1", "SENDONCE_HOT_ROLE": "", "DEBUG": "true",
		"TRUSTED_PROXIES": "10.0.0.0/8", "RETRY_BACKOFF": "*=1m;bulk=0", "RETENTION_DAYS": "0",
	})
	cfg, problems := Load()
	require.Empty(t, problems)
	require.Equal(t, "[::1]:8080", cfg.Address(), "PORT overrides APP_PORT")
	require.Equal(t, Roles{Read: "sendonce_read"}, cfg.Roles, "an empty role does not get its default, and empties two other roles")
	require.True(t, cfg.Debug)
	require.Len(t, cfg.TrustedProxies, 1)
	require.Equal(t, task.Backoff{"*": {time.Minute}, "bulk": {0}}, cfg.RetryBackoff, "the whole default is replaced")
	require.Zero(t, cfg.RetentionDays)
}

// The errors of net/url quote the URL.
func TestErrorsNeverQuoteURLPasswords(t *testing.T) {
	type urls struct {
		URL url.URL `envconfig:"FNTEST_URL"`
	}
	setEnv(t, map[string]string{"FNTEST_URL": "http://u:hunter2@h:x/", "TWO_PHASE_NATS_MONITOR_URL": "ftp://u:hunter2@h"})
	require.Equal(t, []task.Field{{Name: "FNTEST_URL", Message: "must be a URL such as https://example.com"}}, config.Load(&urls{}))
	_, problems := Load()
	require.Equal(t, []task.Field{{Name: "TWO_PHASE_NATS_MONITOR_URL", Message: "must be URLs such as http://host:8222, separated by commas"}}, problems)
}

func TestValuesOutOfBoundsAreReported(t *testing.T) {
	setEnv(t, map[string]string{
		"BASIC_AUTH_USERNAME": "a:b", "PHONE_DEFAULT_COUNTRY_CODE": "+86", "RETENTION_DAYS": "-1", "RETENTION_LOG_DAYS": "36501", "SENDONCE_DATABASE_MAX_CONNS": "0", "SENDONCE_MAX_CALLS": "-1", "SENDONCE_DRAIN_TIMEOUT": "2h",
		"TWO_PHASE_DEFAULT_ACK": "accepted", "SENDONCE_STREAM_EVENTS_MB": "0", "SENDONCE_STREAM_USERS_MAX_AGE": "0s", "SENDONCE_INBOX_MESSAGES": "0",
	})
	_, problems := Load()
	require.Equal(t, []task.Field{
		{Name: "BASIC_AUTH_USERNAME", Message: `is "a:b" but must not be empty or contain a colon`},
		{Name: "PHONE_DEFAULT_COUNTRY_CODE", Message: `is "+86" but must be a country code without +, 1 to 3 digits such as 86, or empty`},
		{Name: "RETENTION_DAYS", Message: `is "-1" but must be between 0 and 36500, where 0 = kept for ever`},
		{Name: "RETENTION_LOG_DAYS", Message: `is "36501" but must be between 0 and 36500, where 0 = kept for ever`},
		{Name: "SENDONCE_DATABASE_MAX_CONNS", Message: `is "0" but must be between 1 and 1000`},
		{Name: "SENDONCE_MAX_CALLS", Message: `is "-1" but must be between 1 and 1000000`},
		{Name: "SENDONCE_DRAIN_TIMEOUT", Message: `is "2h" but must be more than 0 and at most 1h`},
		{Name: "SENDONCE_STREAM_EVENTS_MB", Message: `is "0" but must be more than 0`},
		{Name: "SENDONCE_STREAM_USERS_MAX_AGE", Message: `is "0s" but must be more than 0`},
		{Name: "SENDONCE_INBOX_MESSAGES", Message: `is "0" but must be more than 0`},
		{Name: "TWO_PHASE_DEFAULT_ACK", Message: `is "accepted" but needs TWO_PHASE_ENABLED=true: set that too, or saved`},
	}, problems)
	t.Setenv("TWO_PHASE_ENABLED", "true")
	cfg, problems := Load()
	require.Len(t, problems, 10)
	require.True(t, cfg.TwoPhase.Accepts(""))
	require.False(t, cfg.TwoPhase.Accepts("saved"))
	t.Setenv("TWO_PHASE_DEFAULT_ACK", "fast")
	_, problems = Load()
	require.Contains(t, problems, task.Field{Name: "TWO_PHASE_DEFAULT_ACK", Message: `is "fast" but must be saved or accepted`})
}

func TestOriginsAreChecked(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"chat.example", "https://", "https://chat.example/", "https://chat.example/a", "*", "null"} {
		bad := (&Config{Origins: []string{"https://good.example:8443", origin}}).Validate()
		require.True(t, slices.ContainsFunc(bad, func(f task.Field) bool { return f.Name == "SENDONCE_STREAM_ORIGINS" }), origin)
	}
}

func TestMetricsSettingIsValidated(t *testing.T) {
	t.Parallel()
	for value, valid := range map[string]bool{"admin": true, "open": true, "9464": true, "1": true, "0": false, "65536": false, "": false, "viewer": false, "-1": false} {
		require.Equal(t, valid, validMetrics(value), value)
	}
}

func TestAlertThresholdsOutOfBoundsAreReported(t *testing.T) {
	t.Parallel()
	valid := Alerts{FailureRate: task.Limits{"*": 0.2}, MinFinished: 20, Window: time.Minute}
	require.Empty(t, valid.Validate())
	bad := Alerts{FailureRate: task.Limits{"wechat": 1}, MinFinished: 0, Window: time.Second, StreamFull: 1}
	var names []string
	for _, f := range bad.Validate() {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"ALERT_FAILURE_RATE", "ALERT_STREAM_FULL", "ALERT_MIN_FINISHED", "ALERT_WINDOW"}, names)
	for _, part := range []float64{-0.1, 80, math.NaN()} {
		bad = valid
		bad.StreamFull = part
		require.Len(t, bad.Validate(), 1, part)
	}
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSecretIsReadFromFile(t *testing.T) {
	setEnv(t, map[string]string{
		"BASIC_AUTH_PASSWORD_FILE": secretFile(t, " hunter2 \r\n"), "NATS_PASSWORD_FILE": secretFile(t, "token"), "NATS_PASSWORD": "",
	})
	cfg, problems := Load()
	require.Empty(t, problems)
	require.Equal(t, " hunter2 ", cfg.Password, "only the line end is cut off")
	require.Equal(t, "token", cfg.Bus.Password, "an empty variable counts as not set")
}

func TestSecretFileMustExistAndBeTheOnlySource(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	setEnv(t, map[string]string{
		"DATABASE_URL": "postgres://u:hunter2@h/db", "DATABASE_URL_FILE": secretFile(t, "postgres://h/db"),
		"BASIC_AUTH_PASSWORD_FILE": missing,
	})
	_, problems := Load()
	require.Equal(t, []task.Field{
		{Name: "DATABASE_URL_FILE", Message: "and DATABASE_URL are both set; keep one of them"},
		{Name: "BASIC_AUTH_PASSWORD_FILE", Message: "must name a file that can be read: open " + missing + ": no such file or directory"},
	}, problems)
}
