package settings

import (
	"time"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

// Alerts has the thresholds above which alerts about queues and streams are raised. All functions must
// have the same values.
type Alerts struct {
	FailureRate task.Limits   `envconfig:"ALERT_FAILURE_RATE" default:"0.2" desc:"an alert is raised when more than this share of the tasks that finished within ALERT_WINDOW failed; 0.2, or by queue as wechat=0.1;*=0.2, where * is every other queue; 0 = off"`
	MinFinished int           `envconfig:"ALERT_MIN_FINISHED" default:"20" desc:"no alert about the failure rate of a queue is raised if fewer of its tasks than this finished within ALERT_WINDOW"`
	Backlog     task.Limits   `envconfig:"ALERT_BACKLOG" default:"0" desc:"an alert is raised when more tasks of a queue than this are pending; a number such as 1000, or by queue as ALERT_FAILURE_RATE; 0 = off"`
	StreamFull  float64       `envconfig:"ALERT_STREAM_FULL" default:"0.8" desc:"an alert is raised when more than this share of a NATS stream's limit of bytes (or of messages, if it has such a limit) is used, and cleared at this share minus 0.1, or at 0.8 of this share if that is higher; 0 = off"`
	Window      time.Duration `envconfig:"ALERT_WINDOW" default:"5m" desc:"time over which ALERT_FAILURE_RATE counts finished tasks, 10s to 1h; after a failure, the rate is checked within a tenth of this time, at most 30s"`
}

// Validate checks what the types alone cannot.
func (a *Alerts) Validate() []task.Field {
	var bad decode.BadFields
	for _, rate := range a.FailureRate {
		bad.When(rate >= 1, "ALERT_FAILURE_RATE", "must be less than 1: it is the share of the finished tasks that failed")
	}
	bad.When(!(a.StreamFull >= 0 && a.StreamFull < 1), "ALERT_STREAM_FULL", "must be at least 0 and less than 1: it is the used share of a stream")
	bad.When(a.MinFinished < 1 || a.MinFinished > 1_000_000, "ALERT_MIN_FINISHED", "must be between 1 and 1000000")
	bad.When(a.Window < 10*time.Second || a.Window > time.Hour, "ALERT_WINDOW", "must be between 10s and 1h")
	return bad
}

// Rules returns the settings as task.AlertRules.
func (a *Alerts) Rules() task.AlertRules {
	return task.AlertRules{FailureRate: a.FailureRate, MinFinished: a.MinFinished, Window: a.Window, Backlog: a.Backlog, StreamFull: a.StreamFull}
}
