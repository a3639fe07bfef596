// Package stores opens the database and all stores.
package stores

import (
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/alerts"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the configuration of the database and of all stores.
type Config struct {
	store.Config
	StatusOf        func(code string) int // the HTTP status of a refusal with this code, for receive_logs.status_code
	Backoff         task.Backoff          // how long retries wait, by queue
	Keep            maintenance.Retention // after how many days old rows are archived or deleted
	PhoneCountry    task.Country          // phone numbers of this country may be written without a country code
	Alerts          task.AlertRules       // thresholds of queues and streams
	Waiting         quota.Waiting         // limits of the waiting messages of an account, by default; 0 = no limit
	WaitingTasks    int64                 // the most tasks of an account that are not final, by default; 0 = no limit
	StreamBytes     map[string]int64      // size of each stream; an account may use only a share of it; 0 = no limit
	OperatorCallers int                   // callers that a limited operator and its callers may create together
	Inbox           int                   // capacity of a user's inbox; one sender may use a quarter of it within 15 minutes; 0 = no limit

	// OnPending is called when work in the background has made about n tasks of a queue pending, or has found pending
	// tasks that claims would not find. nil = no call.
	OnPending func(queue string, n int)

	// OnAlert is called after the commit that raised or cleared the alert a, whose Value is the value that caused this.
	// nil = no call.
	OnAlert func(id task.ID, a task.Alert, cleared bool)
}

// Stores are the stores of one database.
type Stores struct {
	Admin       *admin.Store
	Alerts      *alerts.Store
	Callers     *callers.Store
	Events      *events.Store
	Maintenance *maintenance.Store
	Messages    *messages.Store
	Overview    *overview.Store
	Subscribe   *subscribe.Store
	Tasks       *tasks.Store
	Webhooks    *webhooks.Store
}

// Open prepares the connection pools and the stores without connecting.
func Open(cfg Config) (*store.DB, Stores, error) {
	db, err := store.Open(cfg.Config)
	if err != nil {
		return nil, Stores{}, err
	}
	s := Stores{
		Admin: admin.New(db, cfg.PhoneCountry), Alerts: alerts.New(db, cfg.Alerts, cfg.OnAlert), Callers: callers.New(db, cfg.OperatorCallers), Events: events.New(db),
		Messages: messages.New(db, messages.Config{Waiting: cfg.Waiting, StreamBytes: cfg.StreamBytes, Inbox: cfg.Inbox}), Overview: overview.New(db), Webhooks: webhooks.New(db),
	}
	s.Tasks = tasks.New(db, tasks.Config{
		StatusOf: cfg.StatusOf, Backoff: cfg.Backoff, PhoneCountry: cfg.PhoneCountry, Waiting: cfg.WaitingTasks, Hooks: subscribe.TaskHooks(), OnPending: cfg.OnPending, BlockedWords: s.Admin.WordMatcher,
	})
	s.Subscribe = subscribe.New(db, s.Tasks)
	s.Maintenance = maintenance.New(db, s.Alerts, cfg.Keep)
	return db, s, nil
}
