package outbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	rules "github.com/sendonce/sendonce/shared/intake/request"
)

// DDL creates the table of this package in the first schema of the search path. It is idempotent. The column body has
// the type json, because jsonb rewrites numbers and drops repeated names.
const DDL = `
CREATE TABLE IF NOT EXISTS message_outbox (
	id         uuid PRIMARY KEY,
	body       json NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	next_at    timestamptz NOT NULL DEFAULT now(),
	tries      int NOT NULL DEFAULT 0,
	last_error text,
	refused_at timestamptz
);
CREATE INDEX IF NOT EXISTS message_outbox_due ON message_outbox (next_at, id) WHERE refused_at IS NULL;
CREATE INDEX IF NOT EXISTS message_outbox_refused ON message_outbox (refused_at, id) WHERE refused_at IS NOT NULL;
`

// MaxData is the largest size of a message's data as JSON, in bytes.
const MaxData = 64 << 10

// Message is a message for Sendonce. Its destination is either To (a subject, a URL or a user), or RoutingKey with or
// without ExchangeName.
type Message struct {
	From             string    `json:"from,omitempty"` // "" = the forwarder's caller
	To               string    `json:"to,omitempty"`
	ExchangeName     string    `json:"exchange_name,omitempty"`
	RoutingKey       string    `json:"routing_key,omitempty"`
	Type             string    `json:"type,omitempty"`
	Data             any       `json:"data"`                        // any value that JSON can encode, except null
	SentAt           time.Time `json:"sent_at"`                     // zero = now
	Confirm          *bool     `json:"confirm,omitempty"`           // nil = the service's default
	MaxSends         int       `json:"max_sends,omitempty"`         // 0 = the service's default
	ExpectedReceipts int       `json:"expected_receipts,omitempty"` // 0 = the service's default
}

// request is the body of POST /api/v1/messages. Put encodes it, and every POST sends these bytes, since the service
// refuses the same id with another body.
type request struct {
	ClientMsgID string `json:"client_msg_id"`
	Message
	Data json.RawMessage `json:"data"` // hides Message.Data
	Ack  string          `json:"ack"`  // always "saved": the service responds only after it has saved the message
}

// encode returns v as JSON. Unlike json.Marshal, it keeps <, > and & as they are: escaped, each would have six bytes, and the service
// limits the bytes of the data.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

const putSQL = `INSERT INTO message_outbox (id, body) VALUES ($1::text::uuid, $2::text::json)`

// Put adds m to the outbox: m is sent if tx commits. Put returns the client_msg_id of the message. If the service
// would refuse m as invalid, tx stays unchanged and usable, and the error says what is wrong and what is accepted.
func Put(ctx context.Context, tx pgx.Tx, m Message) (id string, err error) {
	if (m.To == "") == (m.RoutingKey == "") {
		return "", errors.New("outbox: give either To or RoutingKey")
	}
	data, err := encode(m.Data)
	if err != nil {
		return "", fmt.Errorf("outbox: encode the data: %w", err)
	}
	if string(data) == "null" {
		return "", errors.New("outbox: Data must not be null: the service would refuse the message")
	}
	if len(data) > MaxData {
		return "", fmt.Errorf("outbox: the data has %d bytes, at most %d are accepted", len(data), MaxData)
	}
	if !utf8.ValidString(m.To) { // encode would change To to another URL
		return "", errors.New("outbox: to must be valid UTF-8")
	}
	if m.SentAt.IsZero() {
		m.SentAt = time.Now().Truncate(time.Millisecond)
	}
	m.SentAt = m.SentAt.UTC()
	id = newID()
	body, err := encode(request{ClientMsgID: id, Message: m, Data: data, Ack: api.AckSaved})
	if err != nil {
		return "", fmt.Errorf("outbox: encode the message: %w", err)
	}
	if bad := decode.Object(body, &rules.Message{}); bad != nil {
		return "", fmt.Errorf("outbox: %w", bad)
	}
	if _, err := tx.Exec(ctx, putSQL, id, string(body)); err != nil {
		return "", fmt.Errorf("outbox: %w", err)
	}
	return id, nil
}

// newID returns a UUID of version 4.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// RefusedMessage is a message that the service refused. Its fields are the columns of refusedSQL, in this order.
type RefusedMessage struct {
	ID        string
	Body      json.RawMessage // of POST /api/v1/messages
	CreatedAt time.Time
	RefusedAt time.Time
	Tries     int
	Reason    string // from the service's response
}

const refusedSQL = `
SELECT id::text, body::text, created_at, refused_at, tries, last_error FROM message_outbox
WHERE refused_at IS NOT NULL ORDER BY refused_at, id LIMIT $1`

// Refused returns up to limit refused messages, oldest refusal first. A refused message stays in the list until Retry
// or until its row is deleted.
func Refused(ctx context.Context, db *pgxpool.Pool, limit int) ([]RefusedMessage, error) {
	rows, _ := db.Query(ctx, refusedSQL, limit) // CollectRows returns its error
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RefusedMessage])
	if err != nil {
		return nil, fmt.Errorf("outbox: list refused: %w", err)
	}
	return list, nil
}

const retrySQL = `
UPDATE message_outbox SET refused_at = NULL, next_at = now()
WHERE id = ANY ($1::text[]::uuid[]) AND refused_at IS NOT NULL`

// Retry makes refused messages due again, for example after a missing permission was granted, and
// returns how many of ids were refused messages.
func Retry(ctx context.Context, db *pgxpool.Pool, ids ...string) (n int64, err error) {
	tag, err := db.Exec(ctx, retrySQL, ids)
	if err != nil {
		return 0, fmt.Errorf("outbox: retry: %w", err)
	}
	return tag.RowsAffected(), nil
}
