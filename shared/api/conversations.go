package api

import "time"

// ConversationRequest lists the messages between two users, newest first: GET /api/v1/messages. The caller must be one
// of the two users, or an admin or viewer.
type ConversationRequest struct {
	Between string `json:"between"`         // the names of the users, joined by a comma
	Limit   *int   `json:"limit,omitempty"` // 1..200; default 50
	After   string `json:"after,omitempty"` // next_after of the previous page
}

// ConversationResponse is one page of the messages between two users.
type ConversationResponse struct {
	Items     []MessageResponse     `json:"items"`
	NextAfter string                `json:"next_after,omitempty"` // pass it as after to get older messages; absent on the last page
	Read      map[string]ReadCursor `json:"read"`                 // by the name of the reader
}

// ReadCursor is how far one of two users has read their conversation.
type ReadCursor struct {
	UpTo   string     `json:"up_to,omitempty"`   // server_msg_id of the newest message that the user has read
	ReadAt *time.Time `json:"read_at,omitempty"` // when the cursor reached up_to
	Unread int        `json:"unread"`            // newer messages of the other user; 100 means 100 or more
}

// PeersRequest lists the users who wrote to a user: GET /api/v1/messages/peers.
type PeersRequest struct {
	User  string `json:"user,omitempty"`  // default: the caller's name; only an admin or viewer may give another name
	Limit *int   `json:"limit,omitempty"` // 1..200; default 50
	After string `json:"after,omitempty"` // next_after of the previous page
}

// Peer is a user who wrote to another user, the reader.
type Peer struct {
	Peer            string    `json:"peer"`
	LastServerMsgID string    `json:"last_server_msg_id"` // of the peer's newest message to the reader
	LastMessageAt   time.Time `json:"last_message_at"`    // when that message was saved
	ReadCursor                // how far the reader has read
}

// ReadRequest marks how far a user has read: POST /api/v1/messages/read.
type ReadRequest struct {
	Between string `json:"between"`          // the names of the two users, joined by a comma
	Reader  string `json:"reader,omitempty"` // default: the caller's name; only an admin may give another name
	UpTo    string `json:"up_to"`            // server_msg_id of a message between the two
}
