package fn

import (
	"context"
	"log/slog"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/task"
)

// logAlert writes an alert to the log, for operators without a webhook endpoint.
func (e *Env) logAlert(id task.ID, a task.Alert, cleared bool) {
	level, text := slog.LevelWarn, "alert raised"
	if cleared {
		level, text = slog.LevelInfo, "alert cleared"
	}
	e.Log.Log(context.Background(), level, text, "alert_id", id, "kind", a.Kind, "queue", a.Queue, "value", a.Value, "threshold", a.Threshold)
}

// scheduleAlertCheck schedules a wake-up of sweep, which checks the queues for alerts, for the end of
// the current interval (see task.AlertRules.CheckInterval). scheduleAlertCheck never blocks. All
// processes have the same intervals, and a schedule for the same time replaces an earlier one, so sweep
// is woken once, however many processes schedule the wake-up.
//
// After a call, further calls do nothing for half of the time until the check, but at least for a
// second. The next call after that schedules the wake-up again: if the clock of NATS is ahead, the first wake-up
// was too early.
func (e *Env) scheduleAlertCheck() {
	now := time.Now()
	check, idleUntil := e.nextAlertCheck(now), e.alertCheckIdleUntil.Load()
	newIdleUntil := now.Add(max(time.Second, check.Sub(now)/2))
	if now.UnixNano() >= idleUntil && e.alertCheckIdleUntil.CompareAndSwap(idleUntil, newIdleUntil.UnixNano()) {
		e.RescheduleAlertCheck()
	}
}

// RescheduleAlertCheck always schedules the wake-up for the end of the current interval. It is for sweep, whose check
// may have been too early.
func (e *Env) RescheduleAlertCheck() { e.WakeAgainAt(bus.WakeSweep, e.nextAlertCheck(time.Now())) }

func (e *Env) nextAlertCheck(now time.Time) time.Time {
	every := e.alerts.CheckInterval()
	return now.Truncate(every).Add(every)
}
