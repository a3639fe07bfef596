package api

import "time"

// The kinds of a SocketFrame in addition to those of a StreamEvent.
const (
	SocketMark   = "mark"   // without Data; its ID is the position before the next event
	SocketNotice = "notice" // Data is a SocketNote: an event cannot be read and was skipped
	SocketError  = "error"  // Data is a SocketFailure: a frame of the client was refused
)

// SocketFrame is one text frame from the service, over the WebSocket that GET /api/v1/stream/{user} is upgraded to. A
// frame with an ID is an event of the user's stream or a mark. A notice has no ID. Any other frame without an ID is the
// response to a frame of the client: responses come in the order of these frames. A frame of the client is a
// MessageRequest.
type SocketFrame struct {
	Event string `json:"event"`
	ID    *ID    `json:"id,omitempty"` // position in the stream; StreamRequest.After continues after it
	Data  JSON   `json:"data,omitempty"`
}

// SocketAck is the data of an ack that responds to a frame. An ack that is an event has a LateAck, with the same field
// names.
type SocketAck struct {
	AckType     string     `json:"ack_type"` // saved or accepted
	From        string     `json:"from"`
	ClientMsgID string     `json:"client_msg_id"`
	ServerMsgID string     `json:"server_msg_id"` // the CloudEvent's id at the receiver
	Status      int        `json:"status"`
	State       string     `json:"state"`
	Replayed    bool       `json:"replayed,omitempty"`    // an earlier request submitted the message
	Archived    bool       `json:"archived,omitempty"`    // this is a repeat, and the message is final and archived
	SavedAt     *time.Time `json:"saved_at,omitempty"`    // with saved
	Durability  string     `json:"durability,omitempty"`  // with accepted: what the message survives: process, host, replicated or replicated-host
	AcceptedAt  *time.Time `json:"accepted_at,omitempty"` // with accepted
	AcceptSeq   int64      `json:"accept_seq,omitempty"`  // with accepted: the order among the messages of one sender
	Ordering    string     `json:"ordering,omitempty"`    // best-effort if accepted was requested and saved is returned
}

// SocketFailure is the data of an error: the envelope of the refusal, and the client_msg_id of the refused frame.
type SocketFailure struct {
	Code              int     `json:"code"` // the HTTP status that a POST would have had
	Message           string  `json:"message"`
	Error             string  `json:"error"`
	Fields            []Field `json:"fields,omitempty"`
	ClientMsgID       string  `json:"client_msg_id,omitempty"`       // as in the frame; absent if it could not be read
	RetryAfterSeconds int     `json:"retry_after_seconds,omitempty"` // when the same frame may be sent again
}

// SocketNote is the data of a notice, for people.
type SocketNote struct {
	Message string `json:"message"`
}
