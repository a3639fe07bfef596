package tasks

import (
	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// kindOf returns the kind of the event that a task has reached the state s.
func kindOf(s task.State) string { return "task." + s.String() }

// publishes reports whether an event of the change is published in mode m, if the event has a receiver.
func publishes(m store.EventMode, c Change) bool {
	changed := c.Before.State != c.After.State || c.Before.Reason != c.After.Reason
	return changed && (m == store.AllEvents || m == store.FinalEvents && c.After.State.Final())
}

// insertEvents writes one row for each caller, kind and reason. The row has the ids of the tasks whose event has a
// receiver: an endpoint of the caller, or the task's own callback URL.
var insertEvents = store.BulkStatement[task.Task]{Text: `
insert into event_outbox (kind, reason, caller_id, ids)
select kind, reason, caller_id, array_agg(id)
from unnest(@arrays) as changed (@columns)
where callback or ` + store.HasEndpoint + `
group by kind, reason, caller_id`,
	Columns: func() []store.BulkColumn[task.Task] {
		return []store.BulkColumn[task.Task]{
			store.Array("id uuid", taskID),
			store.Array("kind text", func(t task.Task) string { return kindOf(t.State) }),
			store.Array("reason smallint", reason),
			store.Array("caller_id bigint", func(t task.Task) int64 { return t.CallerID }),
			store.Array("callback boolean", func(t task.Task) bool { return t.Callback }),
		}
	},
}

// queueEvents adds the events of the changes to the batch. Call Notify of the returned notifier after the commit.
func (st *Store) queueEvents(batch *pgx.Batch, changes []Change) *store.Notifier {
	n := st.db.NewNotifier()
	var withEvent []task.Task
	for _, c := range changes {
		if publishes(st.db.EventMode, c) {
			withEvent = append(withEvent, c.After)
		}
		if c.After.FailureCounts() {
			n.CountFailure()
		}
	}
	if query := insertEvents.Queue(batch, withEvent); query != nil {
		n.CountRows(query)
	}
	return n
}
