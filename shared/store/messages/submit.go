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

// Submission is one message to save. One with Refused set is not saved; if its id is
// known, it is a replay.
type Submission struct {
	ID          task.ID   // the server_msg_id, see msg.ID
	CallID      task.ID   // made for this call alone, before its commit
	Fingerprint task.Hash // of the decoded request

	CallerID         int64
	From             string
	ClientMsgID      string
	To               msg.Address
	Exchange         string // "" unless To was made of it and RoutingKey
	RoutingKey       string
	Type             string
	Data             []byte    // any JSON but null, at most msg.MaxData bytes
	SentAt           time.Time // zero = not given
	Confirm          bool
	MaxSends         int16
	ExpectedReceipts int16 // 1 without Confirm

	// Set if a stream accepted the message before, else zero.
	AcceptSeq  int64     // its sequence number in the stream
	AcceptedAt time.Time // by the clock of Producer
	Producer   string    // the process that accepted it

	ahead time.Duration // how long before now it is due, which orders the messages that are saved together

	// Refused is why the message cannot be saved. A message that is known is
	// a replay, whatever Refused is.
	Refused *task.Error
}

// Submitted is the result of a Submission.
type Submitted struct {
	State    string // the present one, as msg.Message.State
	Status   msg.Status
	SavedAt  time.Time   // by the database's clock
	Replayed bool        // it was saved by an earlier call
	Archived bool        // with Replayed: the message is final and old
	Refused  *task.Error // nothing was done

	err error // of this row alone
}

// Submit saves the messages, together with those of other calls, and returns when all are
// committed: each is then due to be sent. The two slices have one entry for each row, in order.
// A refusal is in Submitted. An error means that the outcome is unknown or that the database is
// unavailable.
//
// The primary keys of messages and archived_messages alone decide what is a repeat: a message
// of the same caller, sender and client_msg_id has the same id on each path.
func (st *Store) Submit(rows []*Submission) ([]Submitted, []error) {
	outs, errs := st.messages.Do(rows)
	for i, err := range errs {
		if err == nil {
			err = outs[i].err
		}
		if store.SQLState(err) == store.CodeLockTimeout {
			err = store.KeyInFlight()
		}
		errs[i] = store.Wrap("submit messages", err)
	}
	return outs, errs
}

// insertMessagesSQL saves new messages, due at once, and returns their ids and the time. Rows
// come sorted by id, so that two flushes never deadlock. Messages of a stream are due a
// microsecond apart, in the stream's order.
const insertMessagesSQL = `
with i as materialized (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::text[], $7::smallint[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::timestamptz[], $14::boolean[], $15::smallint[], $16::smallint[],
        $17::bigint[], $18::timestamptz[], $19::text[], $20::interval[], $21::text[], $22::text[])
    as t (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, exchange_name, routing_key,
        type, data, sent_at, confirm, max_sends, expected_receipts, accept_seq, accepted_at, producer, ahead, destination_key, stream)
), b as (
    insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, exchange_name, routing_key,
        type, data, sent_at, confirm, max_sends, expected_receipts, accept_seq, accepted_at, producer, created_at)
    select id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, exchange_name, routing_key,
        type, data, sent_at, confirm, max_sends, expected_receipts, accept_seq, accepted_at, producer, now() - ahead
    from i
    on conflict (id) do nothing
    returning id
)
insert into message_live (id, caller_id, kind, destination_key, stream, bytes, remaining_sends, next_at)
select id, caller_id, kind, destination_key, stream, octet_length(data), max_sends, now() - ahead from i join b using (id)
returning id, updated_at`

// knownMessagesSQL returns the state of saved messages, and the call that saved each. The status is
// null if a message has no row in either table.
const knownMessagesSQL = `
select m.id, m.call_id, m.fingerprint, coalesce(d.status, l.status), coalesce(d.abandoned, false), m.created_at
from messages m
left join message_live l on l.id = m.id
left join message_done d on d.id = m.id
where m.id = any($1::uuid[])`

// flushMessages commits the rows in one transaction. If the response to the commit is
// lost, it repeats the transaction, and recognises its own rows by their call_id. An error
// after the commit fails only the rows that were not inserted.
func (st *Store) flushMessages(ctx context.Context, rows []*Submission, alone bool) ([]Submitted, error) {
	saved := map[task.ID]time.Time{} // by call
	if fresh := freshMessages(rows); len(fresh) > 0 {
		err := st.db.RetryLostCommit(ctx, func(bool) error { return st.insertMessages(ctx, fresh, alone, saved) })
		if err != nil {
			return nil, err
		}
	}
	out := make([]Submitted, len(rows))
	var open []int
	for i, r := range rows {
		if at, ok := saved[r.CallID]; ok {
			out[i] = Submitted{State: msg.Sending.String(), Status: msg.Sending, SavedAt: at}
		} else {
			open = append(open, i)
		}
	}
	if err := st.resolveMessages(ctx, rows, open, out); err != nil {
		for _, i := range open {
			out[i].err = err
		}
	}
	return out, nil
}

// freshMessages returns the rows to insert, one for each id, sorted by id.
func freshMessages(rows []*Submission) []*Submission {
	fresh := slices.DeleteFunc(slices.Clone(rows), func(m *Submission) bool { return m.Refused != nil })
	slices.SortStableFunc(fresh, func(a, b *Submission) int { return a.ID.Compare(b.ID) })
	return slices.CompactFunc(fresh, func(a, b *Submission) bool { return a.ID == b.ID })
}

func (st *Store) insertMessages(ctx context.Context, rows []*Submission, alone bool, saved map[task.ID]time.Time) error {
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

// destinationKey is that of a message to a URL, null for others.
func (m *Submission) destinationKey() *string {
	if m.To.Kind != msg.URL {
		return nil
	}
	key := destinationKey(m.CallerID, m.To.Name)
	return &key
}

// messageColumns returns the arguments of insertMessagesSQL.
func messageColumns(rows []*Submission) []any {
	return []any{
		store.Column(rows, func(m *Submission) task.ID { return m.ID }),
		store.Column(rows, func(m *Submission) task.ID { return m.CallID }),
		store.Column(rows, func(m *Submission) task.Hash { return m.Fingerprint }),
		store.Column(rows, func(m *Submission) int64 { return m.CallerID }),
		store.Column(rows, func(m *Submission) string { return m.From }),
		store.Column(rows, func(m *Submission) string { return m.ClientMsgID }),
		store.Column(rows, func(m *Submission) int16 { return int16(m.To.Kind) }),
		store.Column(rows, func(m *Submission) string { return m.To.Name }),
		store.Column(rows, func(m *Submission) *string { return store.OrNull(m.Exchange) }),
		store.Column(rows, func(m *Submission) *string { return store.OrNull(m.RoutingKey) }),
		store.Column(rows, func(m *Submission) string { return m.Type }),
		store.Column(rows, func(m *Submission) string { return string(m.Data) }),
		store.Column(rows, func(m *Submission) *time.Time { return store.TimeOrNull(m.SentAt) }),
		store.Column(rows, func(m *Submission) bool { return m.Confirm }),
		store.Column(rows, func(m *Submission) int16 { return m.MaxSends }),
		store.Column(rows, func(m *Submission) int16 { return m.ExpectedReceipts }),
		store.Column(rows, func(m *Submission) *int64 { return store.OrNull(m.AcceptSeq) }),
		store.Column(rows, func(m *Submission) *time.Time { return store.TimeOrNull(m.AcceptedAt) }),
		store.Column(rows, func(m *Submission) *string { return store.OrNull(store.Storable(m.Producer)) }),
		store.Column(rows, func(m *Submission) time.Duration { return m.ahead }),
		store.Column(rows, func(m *Submission) *string { return m.destinationKey() }),
		store.Column(rows, func(m *Submission) string { return m.To.Stream() }),
	}
}

// knownMessage is the saved message with the id of a Submission.
type knownMessage struct {
	id, call    task.ID
	fingerprint task.Hash
	status      *msg.Status // nil if its live or final row is missing
	abandoned   bool
	archived    bool
	savedAt     time.Time
}

// resolveMessages sets the results of the rows that were not inserted: their messages were
// saved by an earlier call or by an earlier try of this flush, or they are refused.
func (st *Store) resolveMessages(ctx context.Context, rows []*Submission, open []int, out []Submitted) error {
	if len(open) == 0 {
		return nil
	}
	known, err := st.knownMessages(ctx, store.Column(open, func(i int) task.ID { return rows[i].ID }))
	if err != nil {
		return err
	}
	replayed := false
	for _, i := range open {
		m := rows[i]
		first, found := known[m.ID]
		switch {
		case found && first.fingerprint != m.Fingerprint:
			out[i].Refused = task.Refuse(task.CodeKeyReused, "this client_msg_id was used with another message; use a new one for a new message")
		case found && first.status == nil: // a function that was taken over deleted its row
			out[i].err = fmt.Errorf("message %s has no state: its row of message_live or message_done was deleted", m.ID)
		case found:
			replayed = true
			state := msg.Message{Status: *first.status, Abandoned: first.abandoned}.State()
			out[i] = Submitted{State: state, Status: *first.status, SavedAt: first.savedAt, Replayed: first.call != m.CallID, Archived: first.archived}
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
	for _, from := range []struct {
		sql      string
		archived bool
	}{{knownMessagesSQL, false}, {knownArchivedMessagesSQL, true}} {
		missing := slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { _, found := known[id]; return found })
		if len(missing) == 0 {
			break
		}
		m := knownMessage{archived: from.archived}
		err := store.QueryEach(ctx, st.db.Hot, from.sql, []any{missing}, []any{&m.id, &m.call, &m.fingerprint, &m.status, &m.abandoned, &m.savedAt}, func() {
			known[m.id] = m
		})
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}
