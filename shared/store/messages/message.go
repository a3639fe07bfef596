package messages

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// messageBody has the first columns of a row for readMessage. One of messageLive, messageWaiting,
// messageDone and messageArchived must follow, then the receipts and now(). The aliases are m for the body, l
// for the live row and d for the final row.
const messageBody = `m.id, m.caller_id, m.sender, m.client_msg_id, m.kind, m.destination, coalesce(m.exchange_name, ''),
    coalesce(m.routing_key, ''), m.type, m.data, m.sent_at, m.confirm, m.max_sends, m.expected_receipts, m.created_at,
    coalesce(m.accept_seq, 0), m.accepted_at, coalesce(m.producer, ''), m.fingerprint`

const messageLive = `l.status, false, l.remaining_sends, l.send_no, l.epoch, l.next_at, coalesce(l.last_error, ''), '', l.updated_at, l.delivered_at, false`

// messageWaiting is messageLive, but if stream_pauses has a row for the stream of a due message, the error is the
// reason in this row.
const messageWaiting = `l.status, false, l.remaining_sends, l.send_no, l.epoch, l.next_at,
    coalesce((select p.reason from stream_pauses p where p.stream = l.stream and l.next_at <= now()), l.last_error, ''), '', l.updated_at, l.delivered_at, false`

const messageEnd = `d.status, d.abandoned, d.remaining_sends, d.send_no, d.epoch, null::timestamptz, coalesce(d.last_error, ''),
    coalesce(d.finished_by, ''), d.finished_at, d.delivered_at`

const (
	messageDone     = messageEnd + `, false`
	messageArchived = messageEnd + `, true`
)

// fromArchivedMessages is the from clause for messageBody and messageArchived.
const fromArchivedMessages = ` from archived_messages m cross join lateral (select m.*) d `

// ReceiptJSON is a row of message_receipts r as a Receipt.
const ReceiptJSON = `jsonb_build_object('consumer', r.consumer, 'confirmedAt', r.confirmed_at, 'sendNo', r.send_no)`

const receiptsOfBody = `(select coalesce(jsonb_agg(` + ReceiptJSON + ` order by r.confirmed_at, r.consumer), '[]') from message_receipts r where r.message_id = m.id)`

// noReceipts takes the place of the receipts in a statement that locks messages. Such a statement could not return all
// receipts: it does not see receipts that are committed while it waits for a lock.
const noReceipts = `'[]'::jsonb`

// bodyOfLive joins the bodies m of live rows l, always by their primary key.
const bodyOfLive = ` cross join lateral (select * from messages where messages.id = l.id offset 0) m `

// bodyOrNull is bodyOfLive, but keeps rows without a body: scanClaimed counts them.
const bodyOrNull = ` left join lateral (select * from messages where messages.id = l.id offset 0) m on true `

// bodyOfListed is bodyOfLive for the read role, which may not read confirm tokens.
const bodyOfListed = ` cross join lateral (
    select id, caller_id, sender, client_msg_id, kind, destination, exchange_name, routing_key, type, data, sent_at, confirm, max_sends,
        expected_receipts, created_at, accept_seq, accepted_at, producer, fingerprint
    from messages where messages.id = l.id offset 0
) m `

// messageDestinationKey is the SQL of destinationKey for a message m to a URL; null for others.
const messageDestinationKey = `case when m.kind = 1 then m.caller_id || ' ' || coalesce(substring(m.destination from '://([^/?#]+)'), '') end`

// destinationKey is the same for all messages of a caller to a host.
func destinationKey(caller int64, url string) string {
	return strconv.FormatInt(caller, 10) + " " + HostOf(url)
}

// HostOf returns the host of a URL, with its port.
func HostOf(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

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
	AcceptSeq   int64     // its sequence number in the stream that accepted it; 0 = Submit saved it
	AcceptedAt  time.Time // zero if Submit saved it
	Producer    string    // the process that accepted it; "" if Submit saved it
	Fingerprint task.Hash // of the decoded request
	UpdatedAt   time.Time
	Receipts    store.List[Receipt] // in time order; empty unless the comment of the method promises receipts
	Archived    bool                // final, and moved to the archive table
}

// Receipt is the confirmation of one consumer.
type Receipt struct {
	Consumer    string    `json:"consumer"`
	ConfirmedAt time.Time `json:"confirmedAt"`
	SendNo      int16     `json:"sendNo"` // the number, in its epoch, of the last send recorded before the confirmation; 0 = none
}

// Valid implements store.Element.
func (r Receipt) Valid() bool { return store.ValidTime(r.ConfirmedAt) }

// To returns the address of the message.
func (m *Detail) To() msg.Address {
	return msg.Address{Kind: m.Kind, Name: m.Destination}
}

func scanMessages(rows pgx.Rows, each func(m Detail, now time.Time)) error {
	_, err := scanClaimed(rows, each)
	return err
}

// scanClaimed calls each for every row with a body, and counts the rows without a body (see bodyOrNull). Before it
// calls each, it scans the columns after those of readMessage into more.
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
	if err == nil && !json.Valid(m.Data) { // only a compromised function writes such data; as a JSON string it fits into a response
		m.Data, err = json.Marshal(string(m.Data))
	}
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

const archivedMessageSQL = `
select ` + messageBody + `, ` + messageArchived + `, m.receipts, now()` + fromArchivedMessages + `where m.id = $1`

// ByID returns a live, final or archived message with its receipts. The error is task.CodeNotFound if there is
// none.
func (st *Store) ByID(ctx context.Context, id task.ID) (Detail, error) {
	m, err := messageByID(ctx, st.db.Hot, messageSQL, id)
	return m, store.Wrap("message", err)
}

// messageByID reads the message that sql finds by id. The error is task.CodeNotFound if there is none.
func messageByID(ctx context.Context, q store.Querier, sql string, id task.ID) (message Detail, err error) {
	rows, err := q.Query(ctx, sql, id)
	if err == nil {
		err = scanMessages(rows, func(m Detail, _ time.Time) { message = m })
	}
	if err == nil && message.ID.IsZero() {
		err = errNoMessage()
	}
	return message, err
}

func errNoMessage() error { return store.NotFound("message") }

const stuckMessagesSQL = `
select ` + messageBody + `, ` + messageLive + `, ` + receiptsOfBody + `, now()
from message_live l` + bodyOfListed + `
where l.remaining_sends = 0 and l.status = $1 and l.id > $2 and l.updated_at <= now() - make_interval(secs => $3)
order by l.id
limit $4`

// ListStuck lists, by id and with their receipts, messages that have no sends left and did not change for
// olderThan. Their status is msg.Sending (no send was accepted) or msg.Sent (not all consumers have
// confirmed). after is the last id of the previous page, zero for the first page.
func (st *Store) ListStuck(ctx context.Context, status msg.Status, olderThan time.Duration, after task.ID, limit int) (page []Detail, more bool, err error) {
	page, more, err = store.QueryPageBy(ctx, st.db.Read, limit, scanMessage, stuckMessagesSQL, int16(status), after, olderThan.Seconds(), limit+1)
	return page, more, store.Wrap("stuck messages", err)
}
