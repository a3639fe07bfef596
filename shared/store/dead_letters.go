package store

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// DeadLetter is an event that a function will never accept.
type DeadLetter struct {
	ID        int64
	Function  string
	EventID   string // unique together with Function
	EventType string
	Event     string // the data of the event, as received
	Reason    string // for an operator
	Attempts  int    // how often the function tried the event
	CreatedAt time.Time
}

// Storable returns the dead letter as it is stored: with shortened texts that have no characters that Postgres refuses.
func (l DeadLetter) Storable() DeadLetter {
	const maxEvent = 64 << 10 // characters
	l.EventID, l.EventType = task.Cut(Storable(l.EventID), task.MaxResult), task.Cut(Storable(l.EventType), task.MaxResult)
	l.Event, l.Reason = task.Cut(Storable(l.Event), maxEvent), task.Cut(Storable(l.Reason), task.MaxResult)
	return l
}

const insertDeadLetterSQL = `
insert into dead_letters (function, event_id, event_type, event, reason, attempts) values ($1, $2, $3, $4, $5, $6)
on conflict (function, event_id) do update set attempts = excluded.attempts, reason = excluded.reason, dead = true`

// QueueDeadLetter adds the statement that stores a dead letter or updates it.
func QueueDeadLetter(batch *pgx.Batch, l DeadLetter) {
	l = l.Storable()
	batch.Queue(insertDeadLetterSQL, l.Function, l.EventID, l.EventType, l.Event, l.Reason, l.Attempts)
}

// JSON returns the dead letter for its audit entry.
func (l DeadLetter) JSON() string {
	return MustJSON(map[string]any{
		"function": l.Function, "event_id": l.EventID, "event_type": l.EventType, "event": l.Event, "reason": l.Reason, "attempts": l.Attempts,
	})
}
