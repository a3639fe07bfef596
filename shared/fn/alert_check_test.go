package fn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
)

func TestProcessesShareAlertIntervals(t *testing.T) {
	t.Parallel()
	env := newTestServer(t, func(c *settings.Config) { c.Alerts.Window = 5 * time.Minute }).env
	start := time.Date(2023, 12, 1, 10, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{0, time.Second, 29*time.Second + 999*time.Millisecond} {
		require.Equal(t, start.Add(30*time.Second), env.nextAlertCheck(start.Add(after)))
	}
	before := time.Now()
	env.scheduleAlertCheck()
	idleUntil := env.alertCheckIdleUntil.Load()
	require.Greater(t, idleUntil, before.UnixNano())
	require.LessOrEqual(t, idleUntil, time.Now().Add(30*time.Second).UnixNano(), "each interval has a wake-up")
}
