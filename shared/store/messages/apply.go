package messages

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// lockLiveMessagesSQL locks in id order, so that two transactions never deadlock.
const lockLiveMessagesSQL = `
select ` + messageBody + `, ` + messageLive + `, ` + noReceipts + `, now()
from message_live l` + bodyOfLive + `
where l.id = any($1::uuid[])
order by l.id
for update of l`

// lockDoneMessagesSQL runs after lockLiveMessagesSQL, so it finds messages that became final while
// lockLiveMessagesSQL waited for their locks.
const lockDoneMessagesSQL = `
select ` + messageBody + `, ` + messageDone + `, ` + noReceipts + `, now()
from message_done d cross join lateral (select * from messages where messages.id = d.id offset 0) m
where d.id = any($1::uuid[])
order by d.id
for update of d`

// messagesExistSQL finds the messages that are live or final, in one snapshot of both tables.
const messagesExistSQL = `
select id from messages where id = any($1::uuid[]) and (exists (select from message_live where message_live.id = messages.id offset 0)
    or exists (select from message_done where message_done.id = messages.id offset 0))`

// messageLockTimeout is how long a confirmation, a change by an operator or RecordDelivered waits for a locked message.
// A relay usually holds its locks for less than 3 s.
const messageLockTimeout = "4s"

// lockedMessages are the messages that a transaction has locked.
type lockedMessages struct {
	byID  map[task.ID]Detail
	exist map[task.ID]bool // the messages that exist and are not archived, locked or not
	now   time.Time        // by the database's clock
}

// queueMessageLock adds the statements that lock a message, live or final. Reading the results of the batch fills the
// returned value.
func queueMessageLock(batch *pgx.Batch, id task.ID) *lockedMessages {
	batch.Queue(store.SetLockTimeoutSQL, messageLockTimeout)
	return queueLocks(batch, lockLiveMessagesSQL, lockDoneMessagesSQL, []task.ID{id})
}

// queueLocksSkipLocked is queueMessageLock for several messages. It skips those that other transactions have locked, so it
// never waits.
func queueLocksSkipLocked(batch *pgx.Batch, ids []task.ID) *lockedMessages {
	return queueLocks(batch, lockLiveMessagesSQL+" skip locked", lockDoneMessagesSQL+" skip locked", ids)
}

func queueLocks(batch *pgx.Batch, live, done string, ids []task.ID) *lockedMessages {
	locked := &lockedMessages{byID: make(map[task.ID]Detail, len(ids)), exist: make(map[task.ID]bool, len(ids))}
	collect := func(rows pgx.Rows) error {
		return scanMessages(rows, func(m Detail, now time.Time) {
			if locked.now = now; locked.byID[m.ID].ID.IsZero() { // if a message has a live and a final row, the live row counts
				locked.byID[m.ID] = m
			}
		})
	}
	batch.Queue(live, ids).Query(collect)
	batch.Queue(done, ids).Query(collect)
	batch.Queue(messagesExistSQL, ids).Query(store.CollectSet(locked.exist))
	return locked
}

// errMoved is the error of get if neither statement locked the message, because it changed from final to live between them.
var errMoved = errors.New("the message was moved to the live messages before it could be locked")

const lockTries = 10 // of untilLocked; each needs a change of the message at the wrong moment

// untilLocked runs a transaction again if it fails with errMoved. If it fails each time, the error is store.Busy.
func untilLocked(run func() error) error {
	for range lockTries {
		if err := run(); !errors.Is(err, errMoved) {
			return err
		}
	}
	return store.Busy()
}

// get returns a locked message. The error is errMoved, or task.CodeNotFound if the message does not exist or is archived.
func (l *lockedMessages) get(id task.ID) (Detail, error) {
	m, found := l.byID[id]
	switch {
	case found:
		return m, nil
	case l.exist[id]:
		return m, errMoved
	default:
		return m, errNoMessage()
	}
}

type messageChange struct {
	id            task.ID
	before, after msg.Message
}

// messageJSON returns a message for its audit entry.
func messageJSON(m msg.Message) string {
	return store.MustJSON(map[string]any{
		"state": m.State(), "status": m.Status, "epoch": m.Epoch, "remaining_sends": m.Remaining, "last_error": m.LastError,
	})
}

const deleteLiveMessagesSQL = `delete from message_live where id = any($1::uuid[])`

const deleteDoneMessagesSQL = `delete from message_done where id = any($1::uuid[])`

const fromLiveChanges = `
from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::integer[], $6::text[], $7::timestamptz[], $8::timestamptz[])
    as t (id, status, remaining_sends, send_no, epoch, last_error, delivered_at, next_at)`

const updateLiveMessagesSQL = `
update message_live l set status = t.status, remaining_sends = t.remaining_sends, send_no = t.send_no, epoch = t.epoch,
    next_at = t.next_at, last_error = nullif(t.last_error, ''), delivered_at = t.delivered_at, updated_at = now()` + fromLiveChanges + `
where l.id = t.id`

// streamOfMessage is the SQL of msg.Address.Stream for a message m.
const streamOfMessage = `case m.kind when 1 then '' when 2 then 'USERS' else case split_part(m.destination, '.', 1) when 'msg' then 'MESSAGES'
    else 'other-' || get_byte(sha256(convert_to(split_part(m.destination, '.', 1), 'UTF8')), 0) % 64 end end`

const insertLiveMessagesSQL = `
insert into message_live (id, status, remaining_sends, send_no, epoch, last_error, delivered_at, next_at, caller_id, bytes, kind, destination_key, stream)
select t.id, status, remaining_sends, send_no, epoch, nullif(last_error, ''), delivered_at, next_at, m.caller_id, octet_length(m.data), m.kind,
    ` + messageDestinationKey + `, ` + streamOfMessage + fromLiveChanges + `
cross join lateral (select * from messages where messages.id = t.id offset 0) m`

// insertDoneMessagesSQL skips messages that have a final row already, so that the changes of the other
// messages do not fail. Only a compromised function writes a final row for a live message.
const insertDoneMessagesSQL = `
insert into message_done (id, status, remaining_sends, send_no, epoch, last_error, delivered_at, abandoned, finished_by)
select id, status, remaining_sends, send_no, epoch, nullif(last_error, ''), delivered_at, abandoned, nullif(finished_by, '')
from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::smallint[], $5::integer[], $6::text[], $7::timestamptz[], $8::boolean[], $9::text[])
    as t (id, status, remaining_sends, send_no, epoch, last_error, delivered_at, abandoned, finished_by)
where not exists (select from message_done d where d.id = t.id offset 0)`

const updateDoneMessagesSQL = `
update message_done d set status = t.status, abandoned = t.abandoned, finished_by = nullif(t.finished_by, ''), delivered_at = t.delivered_at, finished_at = now()
from unnest($1::uuid[], $2::smallint[], $3::boolean[], $4::text[], $5::timestamptz[]) as t (id, status, abandoned, finished_by, delivered_at)
where d.id = t.id`

// queueMessageChanges adds the statements that store the changes of messages. The transaction must have
// locked their rows.
func queueMessageChanges(batch *pgx.Batch, changes []messageChange) {
	var finish, update, amend, revive, wereFinal []messageChange
	for _, c := range changes {
		wasFinal, isFinal := c.before.Final(), c.after.Final()
		if wasFinal {
			wereFinal = append(wereFinal, c)
		}
		switch {
		case c.before == c.after:
		case wasFinal && isFinal:
			amend = append(amend, c)
		case wasFinal:
			revive = append(revive, c)
		case isFinal:
			finish = append(finish, c)
		default:
			update = append(update, c)
		}
	}
	if len(wereFinal) > 0 { // only a compromised function writes a live row of such a message; the row would stay due permanently
		batch.Queue(deleteLiveMessagesSQL, store.Column(wereFinal, changedID))
	}
	if len(finish) > 0 {
		batch.Queue(deleteLiveMessagesSQL, store.Column(finish, changedID))
		batch.Queue(insertDoneMessagesSQL, append(progressColumns(finish), store.Column(finish, abandoned), store.Column(finish, finishedBy))...)
	}
	if len(update) > 0 {
		batch.Queue(updateLiveMessagesSQL, append(progressColumns(update), store.Column(update, nextAt))...)
	}
	if len(amend) > 0 {
		batch.Queue(updateDoneMessagesSQL, store.Column(amend, changedID), store.Column(amend, messageStatus), store.Column(amend, abandoned), store.Column(amend, finishedBy), store.Column(amend, deliveredAt))
	}
	if len(revive) > 0 {
		batch.Queue(deleteDoneMessagesSQL, store.Column(revive, changedID))
		batch.Queue(insertLiveMessagesSQL, append(progressColumns(revive), store.Column(revive, nextAt))...)
	}
}

// progressColumns returns the columns that live and final messages share.
func progressColumns(changes []messageChange) []any {
	return []any{
		store.Column(changes, changedID), store.Column(changes, messageStatus),
		store.Column(changes, func(c messageChange) int16 { return c.after.Remaining }),
		store.Column(changes, func(c messageChange) int16 { return c.after.SendNo }),
		store.Column(changes, func(c messageChange) int32 { return c.after.Epoch }),
		store.Column(changes, func(c messageChange) string { return task.Cut(store.Storable(c.after.LastError), msg.MaxError) }),
		store.Column(changes, deliveredAt),
	}
}

func changedID(c messageChange) task.ID   { return c.id }
func messageStatus(c messageChange) int16 { return int16(c.after.Status) }
func abandoned(c messageChange) bool      { return c.after.Abandoned }
func finishedBy(c messageChange) string   { return store.Storable(c.after.FinishedBy) }
func deliveredAt(c messageChange) *time.Time {
	return store.TimeOrNull(c.after.DeliveredAt)
}
func nextAt(c messageChange) *time.Time { return store.TimeOrNull(c.after.NextAt) }
