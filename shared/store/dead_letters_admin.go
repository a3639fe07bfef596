package store

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Bury keeps an event that no retry will cure, for an operator to look at.
func (db *DB) Bury(ctx context.Context, l DeadLetter) error {
	var batch pgx.Batch
	queueDeadLetter(&batch, l)
	return failed("bury", db.hot.SendBatch(ctx, &batch).Close())
}

// panicsAllowed is how many deliveries of one event may panic before it is a dead
// letter: the first ones may meet a passing state.
const panicsAllowed = 5

const countPanicSQL = `
insert into dead_letters (function, event_id, event_type, event, reason, attempts, dead) values ($1, $2, $3, $4, $5, 1, false)
on conflict (function, event_id) do update set attempts = dead_letters.attempts + 1, reason = excluded.reason,
    dead = dead_letters.dead or dead_letters.attempts + 1 >= $6
returning dead`

// BuryPanicked counts one more panic over an event and tells whether it is a
// dead letter by now.
func (db *DB) BuryPanicked(ctx context.Context, l DeadLetter) (dead bool, err error) {
	err = db.hot.QueryRow(ctx, countPanicSQL, l.Function, storable(l.EventID), storable(l.EventType),
		task.Cut(storable(l.Event), maxDeadLetter), task.Cut(storable(l.Reason), task.MaxResult), panicsAllowed).Scan(&dead)
	return dead, failed("bury", err)
}

const deadLetterColumns = `id, function, event_id, event_type, event, reason, attempts, created_at`

const deadLettersSQL = `
select ` + deadLetterColumns + ` from dead_letters where dead and ($1::bigint = 0 or id < $1) order by id desc limit $2`

// DeadLetters lists them, newest first. after is the last id of the page
// before, 0 for the first page; more says that there is another page.
func (db *DB) DeadLetters(ctx context.Context, after int64, limit int) (page []DeadLetter, more bool, err error) {
	page, more, err = pageOf[DeadLetter](ctx, db.read, limit, deadLettersSQL, after)
	return page, more, failed("dead letters", err)
}

const deleteDeadLetterSQL = `delete from dead_letters where id = $1 and dead returning ` + deadLetterColumns

// DismissDeadLetter removes one that was dealt with; what it was is kept in the
// record of what was done by hand. task.CodeNotFound when there is none.
func (db *DB) DismissDeadLetter(ctx context.Context, id int64, by Operator) error {
	return failed("dismiss dead letter", db.asAdmin(ctx, by, func(tx pgx.Tx) (auditEntry, error) {
		l, err := rowOf[DeadLetter](ctx, tx, "dead letter", deleteDeadLetterSQL, id)
		return auditEntry{"dead_letter.dismiss", "dead_letter/" + strconv.FormatInt(l.ID, 10), l.json(), ""}, err
	}))
}
