package messages

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// fromArchivedMessages is the from clause for messageBody and messageArchived: the aliases m and d
// of both are the archived row.
const fromArchivedMessages = ` from archived_messages m cross join lateral (select m.*) d `

const archivedMessageSQL = `
select ` + messageBody + `, ` + messageArchived + `, m.receipts, now()` + fromArchivedMessages + `where m.id = $1`

// archivedMessage finds an archived message with its receipts; task.CodeNotFound
// when there is none.
func archivedMessage(ctx context.Context, q store.Querier, id task.ID) (Detail, error) {
	return readArchivedMessage(ctx, q, archivedMessageSQL, id)
}

func readArchivedMessage(ctx context.Context, q store.Querier, sql string, id task.ID) (found Detail, err error) {
	rows, err := q.Query(ctx, sql, id)
	if err == nil {
		err = scanMessages(rows, func(m Detail, _ time.Time) { found = m })
	}
	if err == nil && found.ID.IsZero() {
		err = errNoMessage()
	}
	return found, err
}

// withdrawArchivedSQL deletes messages that a transaction has just inserted although they are
// archived, and returns their ids. It is a statement of its own after the insert, so it sees
// what was archived while the insert waited. No id is ever used twice, at the cost of one probe
// of the archive's primary key for each new message.
const withdrawArchivedSQL = `
with a as materialized (
    select id from archived_messages where id = any($1::uuid[])
), l as (
    delete from message_live where id = any(array(select id from a))
)
delete from messages where id = any(array(select id from a)) returning id`

// queueNewMessages adds the statements that save messages. Reading the results of the batch
// fills inserted with the ids of the new messages and the time.
func queueNewMessages(batch *pgx.Batch, rows []*Submission, inserted map[task.ID]time.Time) {
	batch.Queue(insertMessagesSQL, messageColumns(rows)...).Query(store.CollectTimes(inserted))
	batch.Queue(withdrawArchivedSQL, store.Column(rows, func(m *Submission) task.ID { return m.ID })).Query(func(rows pgx.Rows) error {
		var id task.ID
		return store.Each(rows, []any{&id}, func() {
			delete(inserted, id)
		})
	})
}

const knownArchivedMessagesSQL = `select id, call_id, fingerprint, status, abandoned, created_at from archived_messages where id = any($1::uuid[])`

// decideArchivedMessage returns the result of an operator's decision on an archived message: it succeeds only
// if the message already has that state.
func decideArchivedMessage(m Detail, decide decision) error {
	after, err := decide(m.Message, m.UpdatedAt)
	switch {
	case err != nil:
		return task.Refuse(task.CodeConflict, err.Error())
	case after != m.Message:
		return task.Refuse(task.CodeConflict, "the message is archived and changes no more; send it again under another client_msg_id")
	default:
		return nil
	}
}
