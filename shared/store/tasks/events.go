package tasks

import (
	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// kindOf is the kind of the event that a task has reached the state s.
func kindOf(s task.State) string { return "task." + s.String() }

// publishes reports whether the mode publishes a change.
func publishes(m store.EventMode, c Change) bool {
	changed := c.Before.State != c.After.State || c.Before.Reason != c.After.Reason
	return changed && (m == store.AllEvents || m == store.FinalEvents && c.After.State.Final())
}

// insertEventsSQL writes one row for each caller and kind of change in the flush.
const insertEventsSQL = `
insert into event_outbox (kind, reason, caller_id, ids)
select kind, reason, caller_id, array_agg(id)
from unnest($1::uuid[], $2::text[], $3::smallint[], $4::bigint[], $5::boolean[]) as changed (id, kind, reason, caller_id, callback)
where callback or ` + store.HasEndpoint + `
group by kind, reason, caller_id`

// queueEvents adds the events of the changes to the batch. Changes that nobody subscribed to
// write no row.
func (st *Store) queueEvents(batch *pgx.Batch, changes []Change) *store.Notifier {
	n := st.db.NewNotifier()
	var published []task.Task
	for _, c := range changes {
		if publishes(st.db.EventMode, c) {
			published = append(published, c.After)
		}
		if c.After.FailureCounts() {
			n.CountFailure()
		}
	}
	if len(published) > 0 {
		kind := func(t task.Task) string { return kindOf(t.State) }
		n.CountRows(batch.Queue(insertEventsSQL, store.Column(published, taskID), store.Column(published, kind), store.Column(published, reason),
			store.Column(published, callerID), store.Column(published, callback)))
	}
	return n
}
