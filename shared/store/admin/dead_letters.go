package admin

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
)

// AddDeadLetters stores dead letters in one transaction. A dead letter that exists already is updated.
func (st *Store) AddDeadLetters(ctx context.Context, letters ...store.DeadLetter) error {
	slices.SortFunc(letters, func(a, b store.DeadLetter) int { // so that two calls never deadlock
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.EventID, b.EventID))
	})
	var batch pgx.Batch
	for _, l := range letters {
		store.QueueDeadLetter(&batch, l)
	}
	return store.Wrap("add dead letters", st.db.Hot.SendBatch(ctx, &batch).Close())
}

// maxPanics is the number of panics that make an event a dead letter. Fewer panics may have a temporary cause.
const maxPanics = 5

const countPanicSQL = `
insert into dead_letters (function, event_id, event_type, event, reason, attempts, dead) values ($1, $2, $3, $4, $5, 1, false)
on conflict (function, event_id) do update set attempts = dead_letters.attempts + 1, reason = excluded.reason,
    dead = dead_letters.dead or dead_letters.attempts + 1 >= $6
returning dead`

// CountPanic counts that the function l.Function panicked while it handled an event, and reports whether the event is a
// dead letter now.
func (st *Store) CountPanic(ctx context.Context, l store.DeadLetter) (dead bool, err error) {
	l = l.Storable()
	err = st.db.Hot.QueryRow(ctx, countPanicSQL, l.Function, l.EventID, l.EventType, l.Event, l.Reason, maxPanics).Scan(&dead)
	return dead, store.Wrap("count panic", err)
}

const deadLetterColumns = `id, function, event_id, event_type, event, reason, attempts, created_at`

const deadLettersSQL = `
select ` + deadLetterColumns + ` from dead_letters where dead and ($1::bigint = 0 or id < $1) order by id desc limit $2`

// DeadLetters lists the dead letters, newest first. after is the last id of the previous page; 0 = the
// first page.
func (st *Store) DeadLetters(ctx context.Context, after int64, limit int) (page []store.DeadLetter, more bool, err error) {
	page, more, err = store.QueryPage[store.DeadLetter](ctx, st.db.Read, limit, deadLettersSQL, after)
	return page, more, store.Wrap("dead letters", err)
}

const deleteDeadLetterSQL = `delete from dead_letters where id = $1 and dead returning ` + deadLetterColumns

// DismissDeadLetter deletes a dead letter; task.CodeNotFound if there is none. The audit entry has the
// content of the dead letter.
func (st *Store) DismissDeadLetter(ctx context.Context, id int64, by store.Operator) error {
	return store.Wrap("dismiss dead letter", st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		l, err := store.QueryOne[store.DeadLetter](ctx, tx, "dead letter", deleteDeadLetterSQL, id)
		return store.AuditEntry{Action: "dead_letter.dismiss", Subject: "dead_letter/" + strconv.FormatInt(l.ID, 10), Before: l.JSON()}, err
	}))
}
