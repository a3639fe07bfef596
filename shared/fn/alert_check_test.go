package fn

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/settings"
)

func TestProcessesShareAlertIntervals(t *testing.T) {
	t.Parallel()
	env, err := NewEnv(settings.Config{Alerts: settings.Alerts{Window: 5 * time.Minute}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer env.Close()
	at := time.Date(2023, 12, 1, 10, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{0, time.Second, 29*time.Second + 999*time.Millisecond} {
		require.Equal(t, at.Add(30*time.Second), env.nextAlertCheck(at.Add(after)))
	}
	before := time.Now()
	env.scheduleAlertCheck()
	until := env.alertCheckIdleUntil.Load()
	require.Greater(t, until, before.UnixNano())
	require.LessOrEqual(t, until, time.Now().Add(30*time.Second).UnixNano())
}
