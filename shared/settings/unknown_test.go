package settings

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
)

// suggestions returns the names that Unknown refuses, each with the setting that the message suggests; "" = none.
func suggestions(environ ...string) map[string]string {
	suggested := map[string]string{}
	for _, p := range config.Unknown(environ, List()) {
		suggested[p.Name] = ""
		for _, s := range List() {
			for _, name := range []string{s.Name, s.Name + "_FILE"} {
				if p.Message == "is no setting; rename it to "+name+", or set "+name+" too to keep it; `sendonce config` lists them all" {
					suggested[p.Name] = name
				}
			}
		}
	}
	return suggested
}

func TestMisspeltSettingsAreFound(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]string{
		"RETENTION_DAY": "RETENTION_DAYS", "RETENTON_LOG_DAYS": "RETENTION_LOG_DAYS", "RETENTION_LOG_DASY": "RETENTION_LOG_DAYS",
		"ALERT_FAIL_RATE": "ALERT_FAILURE_RATE", "TASK_EVENT": "TASK_EVENTS", "TRUSTED_PROXY": "TRUSTED_PROXIES", "NATS_URI": "NATS_URL",
		"DATABASE_URL_FIEL": "DATABASE_URL_FILE", "SENDONCE_MAX_CALL": "SENDONCE_MAX_CALLS", "SENDONCE_OTHER": "", "WECHAT_X": "",
		"APP_PROT": "APP_PORT", "APP_HOSTS": "APP_HOST", "BASIC_AUTH_USERNAME_FILE": "",
	}, suggestions("BASIC_AUTH_USERNAME_FILE=/x", "APP_PROT=8000", "APP_HOSTS=::1", "RETENTION_DAY=30", "RETENTON_LOG_DAYS=1", "RETENTION_LOG_DASY=1", "ALERT_FAIL_RATE=0.1", "TASK_EVENT=all", "TRUSTED_PROXY=::1", "NATS_URI=nats://a",
		"DATABASE_URL_FIEL=/x", "SENDONCE_MAX_CALL=1", "SENDONCE_OTHER=1", "WECHAT_X=1"))
	require.Empty(t, suggestions("ALERT_MANAGER_URL=http://a", "ALERTMANAGER_URL=http://a", "RETENTION_POLICY=a", "RETENTION=1", "TASK_ID=1", "TASK_QUEUE=a", "RETRY_COUNT=1",
		"APP_ENV=a", "APP_NAME=a", "APP_VERSION=1", "APP_HOME=/app", "NATS_HOST=a", "API_HOST=a", "NATS_PORT=4222", "DATABASE_HOST=a", "DATABASE_USER=a", "HOST=a", "SORT=1", "PORTS=1", "DEBUG1=1", "FUNCTION_NAME=a", "PATH=/bin", "_=x", ""))
}

func TestSimilarNameIsAllowedIfTheSettingIsSet(t *testing.T) {
	t.Parallel()
	require.Empty(t, suggestions("NATS_URI=nats://a", "NATS_URL="))
	require.Empty(t, suggestions("DATABASE_URI=postgres://a", "DATABASE_URL_FILE=/x"))
	require.Equal(t, map[string]string{"SENDONCE_MAX_CALL": ""}, suggestions("SENDONCE_MAX_CALL=1", "SENDONCE_MAX_CALLS=1"), "only Sendonce uses this prefix")
}

func TestServiceLinkVariablesAreIgnored(t *testing.T) {
	t.Parallel()
	require.Empty(t, suggestions("WECHAT_SERVICE_HOST=10.0.0.1", "WECHAT_SERVICE_PORT=80", "WECHAT_SERVICE_PORT_HTTP=80", "WECHAT_PORT=tcp://10.0.0.1:80",
		"SENDONCE_SUBMIT_PORT_80_TCP=tcp://10.0.0.1:80", "SENDONCE_SUBMIT_PORT_80_TCP_ADDR=10.0.0.1", "SENDONCE_SUBMIT_PORT_80_TCP_PORT=80",
		"SENDONCE_SUBMIT_PORT_80_TCP_PROTO=tcp"))
	require.Equal(t, map[string]string{"WECHAT_PORT": ""}, suggestions("WECHAT_PORT=80"))
}
