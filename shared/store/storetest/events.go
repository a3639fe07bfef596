package storetest

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/stores"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Outbox returns the kind and the ids of each row of event_outbox, in order.
func (db *DB) Outbox(t *testing.T) (kinds []string, ids [][]task.ID) {
	t.Helper()
	var kind string
	var rowIDs []task.ID
	require.NoError(t, store.QueryEach(t.Context(), db.Owner, `select kind, ids from event_outbox order by id`, nil, []any{&kind, &rowIDs}, func() {
		kinds, ids = append(kinds, kind), append(ids, slices.Clone(rowIDs))
	}))
	return kinds, ids
}

func FromCaller(id int64) func(*tasks.Submission) {
	return func(s *tasks.Submission) { s.CallerID = id }
}

func WithCallback(s *tasks.Submission) { s.CallbackURL = "https://shop.example/events" }

// RelayEvents runs the relay on about 10 due events, and returns them. outcome(i) is the outcome of the event i, with the
// scope AllStreams.
func (db *DB) RelayEvents(t *testing.T, outcome func(i int) msg.Outcome) (published []events.Due) {
	t.Helper()
	_, err := db.Events.Relay(t.Context(), "", 10, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
		published = due
		results := make([]msg.Result, len(due))
		for i := range results {
			results[i] = msg.Result{Outcome: outcome(i), Reason: "because", Scope: msg.AllStreams}
		}
		return results, nil
	})
	require.NoError(t, err)
	return published
}

func WithEvents(mode store.EventMode) func(*stores.Config) {
	return func(c *stores.Config) { c.Events = mode }
}
