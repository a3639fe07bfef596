package fn

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestBadAlertThresholdsAreReported(t *testing.T) {
	t.Parallel()
	fine := Alerts{FailureRate: task.Limits{"*": 0.2}, MinFinished: 20, Window: time.Minute}
	require.Empty(t, fine.Validate())
	bad := Alerts{FailureRate: task.Limits{"wechat": 1}, MinFinished: 0, Window: time.Second, StreamFull: 1}
	var names []string
	for _, f := range bad.Validate() {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"ALERT_FAILURE_RATE", "ALERT_STREAM_FULL", "ALERT_MIN_FINISHED", "ALERT_WINDOW"}, names)
	for _, part := range []float64{-0.1, 80, math.NaN()} {
		fine.StreamFull = part
		require.Len(t, fine.Validate(), 1, part)
	}
}

func TestProcessesShareAlertIntervals(t *testing.T) {
	t.Parallel()
	env, err := NewEnv(Config{Alerts: Alerts{Window: 5 * time.Minute}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer env.Close()
	at := time.Date(2023, 12, 1, 10, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{0, time.Second, 29*time.Second + 999*time.Millisecond} {
		require.Equal(t, at.Add(30*time.Second), env.nextAlertCheck(at.Add(after)))
	}
	before := time.Now()
	env.ScheduleAlertCheck()
	asked := env.alertCheckUntil.Load()
	require.Greater(t, asked, before.UnixNano())
	require.LessOrEqual(t, asked, time.Now().Add(30*time.Second).UnixNano())
}
