package subscribe

import (
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/tasks"
)

// Store reads and writes subscribe messages, paused templates and provider tokens.
type Store struct {
	db         *store.DB
	tasks      *tasks.Store
	refreshing chan struct{} // full while a call of this instance refreshes a provider's token, or waits for another instance to end its refresh
}

// New returns the store of subscribe messages, which are sent as tasks. The store of tasks must have been created with
// TaskHooks.
func New(db *store.DB, tasks *tasks.Store) *Store {
	return &Store{db: db, tasks: tasks, refreshing: make(chan struct{}, 1)}
}
