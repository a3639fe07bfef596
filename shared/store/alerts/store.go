package alerts

import (
	"sync/atomic"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Store raises, clears and lists alerts.
type Store struct {
	db             *store.DB
	rules          task.AlertRules
	onAlert        func(id task.ID, a task.Alert, cleared bool)
	nextAlertCheck atomic.Int64 // when Check may run again in this process, in Unix nanoseconds
}

// New returns the store of alerts. onAlert is called after the commit that raises or clears an alert; it may be nil.
func New(db *store.DB, rules task.AlertRules, onAlert func(id task.ID, a task.Alert, cleared bool)) *Store {
	if onAlert == nil {
		onAlert = func(task.ID, task.Alert, bool) {}
	}
	return &Store{db: db, rules: rules, onAlert: onAlert}
}
