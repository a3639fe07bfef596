package store

import (
	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// kindOf is the kind of the event that a task has reached the state s.
func kindOf(s task.State) string { return "task." + s.String() }

// publishes reports whether the mode publishes a change.
func publishes(m EventMode, c change) bool {
	changed := c.before.State != c.after.State || c.before.Reason != c.after.Reason
	return changed && (m == AllEvents || m == FinalEvents && c.after.State.Final())
}

// insertEventsSQL writes one row for each caller and kind of change in the flush.
const insertEventsSQL = `
insert into event_outbox (kind, reason, caller_id, ids)
select kind, reason, caller_id, array_agg(id)
from unnest($1::uuid[], $2::text[], $3::smallint[], $4::bigint[], $5::boolean[]) as changed (id, kind, reason, caller_id, callback)
where callback or ` + hasEndpoint + `
group by kind, reason, caller_id`

// queueEvents adds the events of the changes to the batch. Changes that nobody subscribed to
// write no row.
func (db *DB) queueEvents(batch *pgx.Batch, changes []change) *commitNotifier {
	n := db.newNotifier()
	var published []task.Task
	for _, c := range changes {
		if publishes(db.events, c) {
			published = append(published, c.after)
		}
		if c.after.FailureCounts() {
			n.countFailure()
		}
	}
	if len(published) > 0 {
		kind := func(t task.Task) string { return kindOf(t.State) }
		n.countRows(batch.Queue(insertEventsSQL, column(published, taskID), column(published, kind), column(published, reason),
			column(published, callerID), column(published, callback)))
	}
	return n
}
