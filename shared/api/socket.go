package api

import "time"

// The kinds of a SocketFrame beside StreamMessage and StreamAck.
const (
	SocketMark   = "mark"   // there is no Data: where to go on, before the first event
	SocketNotice = "notice" // Data is a SocketNote: events are no longer kept, or not readable
	SocketError  = "error"  // Data is a SocketFailure: a frame of the client was refused
)

// SocketFrame is one text frame from the service, over the WebSocket that
// GET /api/v1/stream/{user} is upgraded to. What has an ID is an event of the
// user's stream; without one it is the response to the client's oldest frame without response.
// A frame of the client is a MessageRequest.
type SocketFrame struct {
	Event string `json:"event"`
	ID    *ID    `json:"id,omitempty"` // where to go on behind it
	Data  JSON   `json:"data,omitempty"`
}

// SocketAck is the data of an ack of a frame. The ack of an event is a
// LateAck, which has the same names.
type SocketAck struct {
	AckType     string     `json:"ack_type"` // saved or accepted
	From        string     `json:"from"`
	ClientMsgID string     `json:"client_msg_id"`
	ServerMsgID string     `json:"server_msg_id"` // the CloudEvent's id at the receiver
	Status      int        `json:"status"`
	State       string     `json:"state"`
	Replayed    bool       `json:"replayed,omitempty"`    // an earlier request submitted the message
	Archived    bool       `json:"archived,omitempty"`    // of a repeat: the message ended more than RETENTION_DAYS ago
	SavedAt     *time.Time `json:"saved_at,omitempty"`    // of saved
	Durability  string     `json:"durability,omitempty"`  // of accepted: what it survives, process, host, replicated or replicated-host
	AcceptedAt  *time.Time `json:"accepted_at,omitempty"` // likewise
	AcceptSeq   int64      `json:"accept_seq,omitempty"`  // likewise: the order among the messages of one sender
	Ordering    string     `json:"ordering,omitempty"`    // best-effort if accepted was requested and saved is returned
}

// SocketFailure is the data of an error: the failure's envelope, and the message
// that it is about.
type SocketFailure struct {
	Code              int     `json:"code"` // the HTTP status that a POST would have had
	Message           string  `json:"message"`
	Error             string  `json:"error"`
	Fields            []Field `json:"fields,omitempty"`
	ClientMsgID       string  `json:"client_msg_id,omitempty"`       // as the frame has it; absent where that could not be read
	RetryAfterSeconds int     `json:"retry_after_seconds,omitempty"` // when the same frame may be sent again
}

// SocketNote is the data of a notice, for people.
type SocketNote struct {
	Message string `json:"message"`
}
