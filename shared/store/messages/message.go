package messages

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// messageBody is the part of messages m that every query of a message returns, followed by
// messageLive, messageDone or messageArchived, its receipts and now().
const messageBody = `m.id, m.caller_id, m.sender, m.client_msg_id, m.kind, m.destination, coalesce(m.exchange_name, ''),
    coalesce(m.routing_key, ''), m.type, m.data, m.sent_at, m.confirm, m.max_sends, m.expected_receipts, m.created_at,
    coalesce(m.accept_seq, 0), m.accepted_at, coalesce(m.producer, ''), m.fingerprint`

const messageLive = `l.status, false, l.remaining_sends, l.send_no, l.epoch, l.next_at, coalesce(l.last_error, ''), '', l.updated_at, l.delivered_at, false`

// messageWaiting is messageLive with the error of the paused stream of a message that is due.
const messageWaiting = `l.status, false, l.remaining_sends, l.send_no, l.epoch, l.next_at,
    coalesce((select p.reason from stream_pauses p where p.stream = l.stream and l.next_at <= now()), l.last_error, ''), '', l.updated_at, l.delivered_at, false`

const messageEnd = `d.status, d.abandoned, d.remaining_sends, d.send_no, d.epoch, null::timestamptz, coalesce(d.last_error, ''),
    coalesce(d.finished_by, ''), d.finished_at, d.delivered_at`

const (
	messageDone     = messageEnd + `, false`
	messageArchived = messageEnd + `, true`
)

// ReceiptJSON is a row of message_receipts r as a Receipt.
const ReceiptJSON = `jsonb_build_object('consumer', r.consumer, 'confirmedAt', r.confirmed_at, 'sendNo', r.send_no)`

const receiptsOfBody = `(select coalesce(jsonb_agg(` + ReceiptJSON + ` order by r.confirmed_at, r.consumer), '[]') from message_receipts r where r.message_id = m.id)`

// noReceipts is used where receipts are not wanted or cannot be seen: a statement that waits
// for a lock does not see what was committed meanwhile.
const noReceipts = `'[]'::jsonb`

// bodyOfLive joins the body to live rows l, always by its primary key.
const bodyOfLive = ` cross join lateral (select * from messages where messages.id = l.id offset 0) m `

// bodyOrNull is bodyOfLive with nulls for a row whose body is missing, which scanClaimed counts.
const bodyOrNull = ` left join lateral (select * from messages where messages.id = l.id offset 0) m on true `

// bodyOfListed is bodyOfLive for the read role, which may not read confirm tokens.
const bodyOfListed = ` cross join lateral (
    select id, caller_id, sender, client_msg_id, kind, destination, exchange_name, routing_key, type, data, sent_at, confirm, max_sends,
        expected_receipts, created_at, accept_seq, accepted_at, producer, fingerprint
    from messages where messages.id = l.id offset 0
) m `

// Detail is a reliable message with its body.
type Detail struct {
	msg.Message
	ID          task.ID // the server_msg_id
	CallerID    int64
	From        string
	ClientMsgID string
	Destination string // the subject, the URL or the user's name
	Exchange    string // as it was submitted; "" = the message was submitted with an address
	RoutingKey  string
	Type        string
	Data        json.RawMessage // any JSON but null, as it was submitted
	SentAt      time.Time       // by the sender's clock; zero = not given
	CreatedAt   time.Time
	AcceptSeq   int64     // in the stream that accepted it; 0 = it was saved by Submit
	AcceptedAt  time.Time // zero likewise
	Producer    string    // the process that accepted it; "" likewise
	Fingerprint task.Hash // of the decoded request
	UpdatedAt   time.Time
	Receipts    store.List[Receipt] // in time order; nil unless the method documents it
	Archived    bool                // final, and moved to the archive table
}

// Receipt is the confirmation of one consumer.
type Receipt struct {
	Consumer    string    `json:"consumer"`
	ConfirmedAt time.Time `json:"confirmedAt"`
	SendNo      int16     `json:"sendNo"` // the last send before the confirmation
}

// Valid implements store.Element.
func (r Receipt) Valid() bool { return store.ValidTime(r.ConfirmedAt) }

// To is where the message goes.
func (m *Detail) To() msg.Address {
	return msg.Address{Kind: m.Kind, Name: m.Destination}
}

// scanMessages reads rows of messageBody with what follows it, receipts and now(), and then the
// columns in more.
func scanMessages(rows pgx.Rows, each func(m Detail, now time.Time), more ...any) error {
	_, err := scanClaimed(rows, each, more...)
	return err
}

// scanClaimed is scanMessages for rows of bodyOrNull. It skips and counts those without a body.
func scanClaimed(rows pgx.Rows, each func(m Detail, now time.Time), more ...any) (bodiless int, err error) {
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (none struct{}, err error) {
		if row.RawValues()[0] == nil { // the id of the body
			bodiless++
			return none, nil
		}
		m, now, err := readMessage(row, more...)
		if err == nil {
			each(m, now)
		}
		return none, err
	})
	return bodiless, err
}

func scanMessage(row pgx.CollectableRow) (Detail, error) {
	m, _, err := readMessage(row)
	return m, err
}

func readMessage(row pgx.CollectableRow, more ...any) (m Detail, now time.Time, err error) {
	var sent, accepted, next, delivered *time.Time
	targets := []any{
		&m.ID, &m.CallerID, &m.From, &m.ClientMsgID, &m.Kind, &m.Destination, &m.Exchange,
		&m.RoutingKey, &m.Type, (*[]byte)(&m.Data), &sent, &m.Confirm, &m.MaxSends, &m.ExpectedReceipts, &m.CreatedAt,
		&m.AcceptSeq, &accepted, &m.Producer, &m.Fingerprint,
		&m.Status, &m.Abandoned, &m.Remaining, &m.SendNo, &m.Epoch, &next, &m.LastError, &m.FinishedBy, &m.UpdatedAt, &delivered, &m.Archived,
		&m.Receipts, &now,
	}
	err = row.Scan(append(targets, more...)...)
	m.SentAt, m.AcceptedAt, m.NextAt, m.DeliveredAt = store.OrZero(sent), store.OrZero(accepted), store.OrZero(next), store.OrZero(delivered)
	return m, now, err
}

const messageSQL = `
select ` + messageBody + `, ` + messageWaiting + `, ` + receiptsOfBody + `, now()
from messages m join message_live l on l.id = m.id where m.id = $1
union all
select ` + messageBody + `, ` + messageDone + `, ` + receiptsOfBody + `, now()
from messages m join message_done d on d.id = m.id where m.id = $1
union all` + archivedMessageSQL

// ByID returns a message with its receipts, whether it is live, final or archived. The error
// is task.CodeNotFound if there is none.
func (st *Store) ByID(ctx context.Context, id task.ID) (found Detail, err error) {
	rows, err := st.db.Hot.Query(ctx, messageSQL, id)
	if err == nil {
		err = scanMessages(rows, func(m Detail, _ time.Time) { found = m })
	}
	if err == nil && found.ID.IsZero() {
		err = errNoMessage()
	}
	return found, store.Wrap("message", err)
}

func errNoMessage() error { return store.NotFound("message") }

const stuckMessagesSQL = `
select ` + messageBody + `, ` + messageLive + `, ` + receiptsOfBody + `, now()
from message_live l` + bodyOfListed + `
where l.remaining_sends = 0 and l.status = $1 and l.id > $2 and l.updated_at <= now() - make_interval(secs => $3)
order by l.id
limit $4`

// ListStuck lists, by id, messages that have no sends left and wait for an operator: those that
// no broker accepted (msg.Sending) or that were sent and not confirmed (msg.Sent) for
// olderThan. They have their receipts. after is the last id of the previous page, zero for the
// first page.
func (st *Store) ListStuck(ctx context.Context, status msg.Status, olderThan time.Duration, after task.ID, limit int) (page []Detail, more bool, err error) {
	page, more, err = store.QueryPageBy(ctx, st.db.Read, limit, scanMessage, stuckMessagesSQL, int16(status), after, olderThan.Seconds(), limit+1)
	return page, more, store.Wrap("stuck messages", err)
}
