package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestAProcessThatStartsForOneCallLogsInOnce(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	operator := serveHandler(t, handler(t, url)).caller("operator", "admin")
	for path, role := range map[string]string{
		"/api/v1/admin/callers":                      "read",
		"/api/v1/webhooks/endpoints":                 "read",
		"/api/v1/sms/tasks/pending?app_id=a&limit=1": "hot",
	} {
		env, h := environment(t, url)
		fresh := serveHandler(t, h)
		fresh.user, fresh.password = operator.user, operator.password
		require.Equal(t, 200, fresh.get(path).status)
		for pool, is := range env.DB().Stats() {
			require.Equal(t, pool == role, is.TotalConns() > 0, "the pool %s after GET %s", pool, path)
		}
	}
}
