package messages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Submit saves messages, in one transaction with messages of other calls. When it returns, every message without a
// refusal or an error is committed. The two slices have one entry for each row, in order. A refusal is in Submitted. An
// error is task.CodeKeyInFlight while another call saves a message with this id. After any other error, the message may
// or may not be saved.
//
// A message with the same caller, sender and client_msg_id always has the same id. So the primary keys of
// messages and archived_messages decide whether a message is a repeat.
func (st *Store) Submit(rows []*Submission) ([]Submitted, []error) {
	outs, errs := st.submissions.Do(rows)
	for i, err := range errs {
		if err == nil {
			err = outs[i].err
		}
		if store.TimedOutOnRowOf(err, "messages") {
			err = store.KeyInFlight()
		}
		errs[i] = store.Wrap("submit messages", err)
	}
	return outs, errs
}

const bodyColumns = `id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, exchange_name, routing_key,
        type, data, sent_at, confirm, max_sends, expected_receipts, accept_seq, accepted_at, producer`

// insertMessages saves new messages, due at once, and returns their ids and the time. The rows must be
// sorted by id, so that two transactions never deadlock. Accepted messages are created and due a microsecond apart
// (ahead), in the order of their stream.
var insertMessages = store.BulkStatement[*Submission]{Columns: submissionColumns, Text: `
with i as materialized (
    select * from unnest(@arrays) as t (@columns)
), b as (
    insert into messages (` + bodyColumns + `, created_at)
    select ` + bodyColumns + `, now() - ahead from i
    on conflict (id) do nothing
    returning id
)
insert into message_live (id, caller_id, kind, destination_key, stream, bytes, remaining_sends, next_at)
select id, caller_id, kind, destination_key, stream, octet_length(data), max_sends, now() - ahead from i join b using (id)
returning id, updated_at`}

func submissionColumns() []store.BulkColumn[*Submission] {
	return []store.BulkColumn[*Submission]{
		store.Array("id uuid", func(m *Submission) task.ID { return m.ID }),
		store.Array("call_id uuid", func(m *Submission) task.ID { return m.CallID }),
		store.Array("fingerprint uuid", func(m *Submission) task.Hash { return m.Fingerprint }),
		store.Array("caller_id bigint", func(m *Submission) int64 { return m.CallerID }),
		store.Array("sender text", func(m *Submission) string { return m.From }),
		store.Array("client_msg_id text", func(m *Submission) string { return m.ClientMsgID }),
		store.Array("kind smallint", func(m *Submission) int16 { return int16(m.To.Kind) }),
		store.Array("destination text", func(m *Submission) string { return m.To.Name }),
		store.Array("exchange_name text", func(m *Submission) *string { return store.OrNull(m.Exchange) }),
		store.Array("routing_key text", func(m *Submission) *string { return store.OrNull(m.RoutingKey) }),
		store.Array("type text", func(m *Submission) string { return m.Type }),
		store.Array("data text", func(m *Submission) string { return string(m.Data) }),
		store.Array("sent_at timestamptz", func(m *Submission) *time.Time { return store.TimeOrNull(m.SentAt) }),
		store.Array("confirm boolean", func(m *Submission) bool { return m.Confirm }),
		store.Array("max_sends smallint", func(m *Submission) int16 { return m.MaxSends }),
		store.Array("expected_receipts smallint", func(m *Submission) int16 { return m.ExpectedReceipts }),
		store.Array("accept_seq bigint", func(m *Submission) *int64 { return store.OrNull(m.AcceptSeq) }),
		store.Array("accepted_at timestamptz", func(m *Submission) *time.Time { return store.TimeOrNull(m.AcceptedAt) }),
		store.Array("producer text", func(m *Submission) *string { return store.OrNull(store.Storable(m.Producer)) }),
		store.Array("ahead interval", func(m *Submission) time.Duration { return m.ahead }),
		store.Array("destination_key text", (*Submission).destinationKey),
		store.Array("stream text", func(m *Submission) string { return m.To.Stream() }),
	}
}

// destinationKey returns the key of a message to a URL, null for others.
func (m *Submission) destinationKey() *string {
	if m.To.Kind != msg.URL {
		return nil
	}
	return new(destinationKey(m.CallerID, m.To.Name))
}

// withdrawArchivedSQL deletes messages that a transaction has just inserted although they are archived, and
// returns their ids. So no id is ever used twice. withdrawArchivedSQL runs after the insert, so it sees what was
// archived while the insert waited. It costs one probe of the archive's primary key for each new message.
const withdrawArchivedSQL = `
with a as materialized (
    select id from archived_messages where id = any($1::uuid[])
), l as (
    delete from message_live where id = any(array(select id from a))
)
delete from messages where id = any(array(select id from a)) returning id`

// queueNewMessages adds the statements that save messages. Reading the results of the batch
// fills inserted with the ids of the new messages and the time of the insert.
func queueNewMessages(batch *pgx.Batch, rows []*Submission, inserted map[task.ID]time.Time) {
	if len(rows) == 0 {
		return
	}
	insertMessages.Queue(batch, rows).Query(func(rows pgx.Rows) error {
		var id task.ID
		var at time.Time
		return store.Each(rows, []any{&id, &at}, func() { inserted[id] = at })
	})
	batch.Queue(withdrawArchivedSQL, store.Column(rows, func(m *Submission) task.ID { return m.ID })).Query(func(rows pgx.Rows) error {
		var id task.ID
		return store.Each(rows, []any{&id}, func() { delete(inserted, id) })
	})
}

// knownMessagesSQL returns the state of saved messages, and the call that saved each. The status is null if a
// message has neither a live nor a final row.
const knownMessagesSQL = `
select m.id, m.call_id, m.fingerprint, coalesce(d.status, l.status), coalesce(d.abandoned, false), m.created_at
from messages m
left join message_live l on l.id = m.id
left join message_done d on d.id = m.id
where m.id = any($1::uuid[])`

const knownArchivedMessagesSQL = `select id, call_id, fingerprint, status, abandoned, created_at from archived_messages where id = any($1::uuid[])`

// flushMessages commits the rows in one transaction. If the response to the commit is lost, flushMessages
// repeats the transaction, and recognises its own rows by their call_id. An error after the commit fails only
// the rows that were not inserted. If alone is true, the only row was in a failed flush before and has waited for locks
// already, so it waits only briefly.
func (st *Store) flushMessages(ctx context.Context, rows []*Submission, alone bool) ([]Submitted, error) {
	saved := map[task.ID]time.Time{} // by CallID
	if toInsert := rowsToInsert(rows); len(toInsert) > 0 {
		err := st.db.RetryLostCommit(ctx, func(bool) error { return st.commitMessages(ctx, toInsert, alone, saved) })
		if err != nil {
			return nil, err
		}
	}
	out := make([]Submitted, len(rows))
	var notInserted []int // indexes of rows
	for i, r := range rows {
		if at, ok := saved[r.CallID]; ok {
			out[i] = Submitted{State: msg.Sending.String(), Status: msg.Sending, SavedAt: at}
		} else {
			notInserted = append(notInserted, i)
		}
	}
	if err := st.resolveMessages(ctx, rows, notInserted, out); err != nil {
		for _, i := range notInserted {
			out[i].err = err
		}
	}
	return out, nil
}

// rowsToInsert returns the rows that are not refused, of each id only the first one, sorted by id. Some of the messages may
// have been saved before.
func rowsToInsert(rows []*Submission) []*Submission {
	toInsert := slices.DeleteFunc(slices.Clone(rows), func(m *Submission) bool { return m.Refused != nil })
	slices.SortStableFunc(toInsert, func(a, b *Submission) int { return a.ID.Compare(b.ID) })
	return slices.CompactFunc(toInsert, func(a, b *Submission) bool { return a.ID == b.ID })
}

func (st *Store) commitMessages(ctx context.Context, rows []*Submission, alone bool, saved map[task.ID]time.Time) error {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	timeout := store.KeyTimeout
	if alone {
		timeout = store.KeyTimeoutAlone
	}
	inserted := map[task.ID]time.Time{}
	var batch pgx.Batch
	batch.Queue(store.LockTimeoutAndPlanOnceSQL, timeout)
	queueNewMessages(&batch, rows, inserted)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return store.WrapConnectionLost(conn.Conn(), err)
	}
	for _, m := range rows {
		if at, ok := inserted[m.ID]; ok {
			saved[m.CallID] = at
		}
	}
	return nil
}

// knownMessage is the saved message with the id of a Submission.
type knownMessage struct {
	id, call    task.ID
	fingerprint task.Hash
	status      *msg.Status // nil if it has neither a live nor a final row
	abandoned   bool
	archived    bool
	savedAt     time.Time
}

// resolveMessages sets the results of the rows that were not inserted: their messages were saved by an earlier
// call, an earlier try of this flush or another row of this flush, or they are refused.
func (st *Store) resolveMessages(ctx context.Context, rows []*Submission, notInserted []int, out []Submitted) error {
	if len(notInserted) == 0 {
		return nil
	}
	known, err := st.knownMessages(ctx, store.Column(notInserted, func(i int) task.ID { return rows[i].ID }))
	if err != nil {
		return err
	}
	replayed := false
	for _, i := range notInserted {
		m := rows[i]
		saved, found := known[m.ID]
		switch {
		case found && saved.fingerprint != m.Fingerprint:
			out[i].Refused = task.Refuse(task.CodeKeyReused, "this client_msg_id was used with another message; use a new one for a new message")
		case found && saved.status == nil: // only a compromised function deletes its row
			out[i].err = fmt.Errorf("message %s has no state: its row of message_live or message_done was deleted", m.ID)
		case found:
			replayed = true
			state := msg.Message{Status: *saved.status, Abandoned: saved.abandoned}.State()
			out[i] = Submitted{State: state, Status: *saved.status, SavedAt: saved.savedAt, Replayed: saved.call != m.CallID, Archived: saved.archived}
		case m.Refused != nil:
			out[i].Refused = m.Refused
		default:
			out[i].err = errors.New("a message was neither inserted nor found")
		}
	}
	if replayed {
		return st.db.WaitForStandby(ctx)
	}
	return nil
}

func (st *Store) knownMessages(ctx context.Context, ids []task.ID) (map[task.ID]knownMessage, error) {
	known := make(map[task.ID]knownMessage, len(ids))
	for _, sql := range []string{knownMessagesSQL, knownArchivedMessagesSQL} {
		missing := slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { _, found := known[id]; return found })
		if len(missing) == 0 {
			break
		}
		m := knownMessage{archived: sql == knownArchivedMessagesSQL}
		err := store.QueryEach(ctx, st.db.Hot, sql, []any{missing}, []any{&m.id, &m.call, &m.fingerprint, &m.status, &m.abandoned, &m.savedAt}, func() {
			known[m.id] = m
		})
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}
