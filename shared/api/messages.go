package api

import (
	"encoding/json"
	"time"
)

// JSON is any JSON value, kept as it was written.
type JSON = json.RawMessage

// The acknowledgements of a message.
const (
	AckSaved    = "saved"    // the message is committed to the database
	AckAccepted = "accepted" // a stream has the message, which will be saved or rejected
	AckRejected = "rejected" // the message was accepted and cannot be saved
)

// MessageRequest submits one reliable message: POST /api/v1/messages. Its destination is To, or the subject that
// ExchangeName and RoutingKey form.
type MessageRequest struct {
	From             string     `json:"from,omitempty"` // default: the caller's name
	ClientMsgID      string     `json:"client_msg_id"`  // ^[A-Za-z0-9._:-]{1,255}$; unique among the messages of From
	To               string     `json:"to,omitempty"`   // a subject, an https or http URL, or user:<name>
	ExchangeName     string     `json:"exchange_name,omitempty"`
	RoutingKey       string     `json:"routing_key,omitempty"`
	Type             string     `json:"type,omitempty"`              // of the CloudEvent; default sendonce.message.v1
	Data             JSON       `json:"data"`                        // any JSON but null, at most 64 KiB
	SentAt           *time.Time `json:"sent_at,omitempty"`           // by the sender's clock; stored and returned, not used
	Ack              string     `json:"ack,omitempty"`               // saved or accepted; default TWO_PHASE_DEFAULT_ACK, which is saved unless the operator changed it
	Confirm          *bool      `json:"confirm,omitempty"`           // wait for the confirmation of the receiver; default true for a subject, else false
	MaxSends         *int       `json:"max_sends,omitempty"`         // 1..20; default 5
	ExpectedReceipts *int       `json:"expected_receipts,omitempty"` // 1..100 distinct consumers; default 1
}

// MessageAck is the acknowledgement of a message.
type MessageAck struct {
	ServerMsgID string `json:"server_msg_id"` // the CloudEvent's id at the receiver
	ClientMsgID string `json:"client_msg_id"`
	From        string `json:"from"`
	Ack         string `json:"ack"` // saved or accepted
	Status      int    `json:"status"`
	State       string `json:"state"`

	Durability string     `json:"durability,omitempty"`  // with accepted: what the message survives: process, host, replicated or replicated-host
	AcceptedAt *time.Time `json:"accepted_at,omitempty"` // with accepted
	AcceptSeq  int64      `json:"accept_seq,omitempty"`  // with accepted: the order among the messages of one sender
	Archived   bool       `json:"archived,omitempty"`    // this is a repeat, and the message is final and archived
	Ordering   string     `json:"ordering,omitempty"`    // best-effort if accepted was requested and saved is returned
}

// LateAck is the data of an event sendonce.ack.saved.v1 or sendonce.ack.rejected.v1, the final acknowledgement of an
// accepted message.
type LateAck struct {
	AckType     string    `json:"ack_type"` // saved or rejected; rejected = another message has the client_msg_id, or the database can never store the message
	From        string    `json:"from"`
	ClientMsgID string    `json:"client_msg_id"`
	ServerMsgID string    `json:"server_msg_id"`
	AcceptSeq   int64     `json:"accept_seq"`
	SavedAt     time.Time `json:"saved_at"`
}

// MessageResponse is a message as its sender sees it: GET /api/v1/messages/{id}.
type MessageResponse struct {
	ServerMsgID      string     `json:"server_msg_id"`
	ClientMsgID      string     `json:"client_msg_id"`
	From             string     `json:"from"`
	To               string     `json:"to"`
	ExchangeName     string     `json:"exchange_name,omitempty"`
	RoutingKey       string     `json:"routing_key,omitempty"`
	Type             string     `json:"type"`
	Data             JSON       `json:"data"`
	Status           int        `json:"status"` // 0 sending, 1 sent, 2 received
	State            string     `json:"state"`  // accepted (not saved yet), sending, sent, received, abandoned
	Stuck            bool       `json:"stuck"`  // no send is left, and an operator must decide
	Confirm          bool       `json:"confirm"`
	MaxSends         int        `json:"max_sends"`
	RemainingSends   int        `json:"remaining_sends"`
	Epoch            int        `json:"epoch"` // 1, and one more with each redrive
	ExpectedReceipts int        `json:"expected_receipts"`
	Receipts         []Receipt  `json:"receipts"`
	LastError        string     `json:"last_error,omitempty"`   // why the newest send was refused or got no response
	NextSendAt       *time.Time `json:"next_send_at,omitempty"` // absent when no send follows
	SentAt           *time.Time `json:"sent_at,omitempty"`
	CreatedAt        time.Time  `json:"created_at"`
	UpdatedAt        time.Time  `json:"updated_at"`
	FinishedBy       string     `json:"finished_by,omitempty"`  // the consumer with the last needed confirmation, or the operator who abandoned the message
	AcceptSeq        int64      `json:"accept_seq,omitempty"`   // with a message that was accepted before it was saved
	AcceptedAt       *time.Time `json:"accepted_at,omitempty"`  // only with accept_seq
	Producer         string     `json:"producer,omitempty"`     // only with accept_seq: the process that accepted the message
	DeliveredAt      *time.Time `json:"delivered_at,omitempty"` // when a stream, or the receiver at a URL, first had the message; may be known before the message is saved
	Archived         bool       `json:"archived,omitempty"`     // final and old: it can be confirmed, but not redriven
}

// Receipt is the confirmation of one consumer.
type Receipt struct {
	Consumer    string    `json:"consumer"`
	ConfirmedAt time.Time `json:"confirmed_at"`
	SendNo      int       `json:"send_no"` // the number of sends up to then
}

// MessageByKeyRequest finds a message by the sender's own id:
// GET /api/v1/messages/by-key/{client_msg_id}.
type MessageByKeyRequest struct {
	From string `json:"from,omitempty"` // default: the caller's name
}

// ReceivedRequest confirms a message: POST /api/v1/messages/{id}/received.
type ReceivedRequest struct {
	Consumer string `json:"consumer,omitempty"` // default: the caller's name; only an admin may give another name
	Token    string `json:"token,omitempty"`    // for a message to a URL: the attribute confirmtoken of its delivery
}

// StuckRequest lists messages that wait for an operator: GET /api/v1/messages/stuck.
type StuckRequest struct {
	Kind             string `json:"kind"`                         // sending: no stream or receiver accepted the messages; sent: not all consumers confirmed the messages
	OlderThanSeconds int64  `json:"older_than_seconds,omitempty"` // stuck for at least this long
	Limit            *int   `json:"limit,omitempty"`              // 1..200; default 50
	After            string `json:"after,omitempty"`              // next_after of the previous page
}

// RedriveRequest sends a message again, with all of max_sends: POST /api/v1/messages/{id}/redrive.
type RedriveRequest struct {
	Reason string `json:"reason,omitempty"` // at most 500 characters
}

// AbandonRequest ends a message that is not received: POST /api/v1/messages/{id}/abandon.
type AbandonRequest struct {
	Reason string `json:"reason"` // 1..500 characters
}

// MessageRevealRequest reads the data of messages: POST /api/v1/messages/reveal. The service records who read them.
type MessageRevealRequest struct {
	IDs    []string `json:"ids"`              // 1..50; those that the caller may not read are left out
	Reason string   `json:"reason,omitempty"` // at most 500 characters
}

// MessageRevealResponse has the data of the messages.
type MessageRevealResponse struct {
	Items []RevealedMessage `json:"items"`
}

// RevealedMessage is the data of one message.
type RevealedMessage struct {
	ServerMsgID string `json:"server_msg_id"`
	Data        JSON   `json:"data"`
}

// MessageBulkRequest redrives or abandons stuck messages: POST
// /api/v1/messages/redrive and /api/v1/messages/abandon. Kind or IDs is needed.
type MessageBulkRequest struct {
	Kind             string   `json:"kind,omitempty"` // sending or sent
	IDs              []string `json:"ids,omitempty"`  // at most 500; those that are not stuck are left out
	OlderThanSeconds int64    `json:"older_than_seconds,omitempty"`
	Limit            *int     `json:"limit,omitempty"`   // of messages to change, 1..500; default 500
	DryRun           bool     `json:"dry_run,omitempty"` // count only
	Reason           string   `json:"reason,omitempty"`  // at most 500 characters; required to abandon
}

// MessageBulkResponse counts the messages of a MessageBulkRequest.
type MessageBulkResponse struct {
	Matched int `json:"matched"` // stuck messages that the request selects
	Changed int `json:"changed"` // those that were changed; 0 in a dry run
}
