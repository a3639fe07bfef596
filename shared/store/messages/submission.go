package messages

import (
	"time"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

// Submission is a message to save.
type Submission struct {
	ID          task.ID   // the server_msg_id, see msg.ID
	CallID      task.ID   // new for each Submission, so that a repeated commit recognises its own row
	Fingerprint task.Hash // of the decoded request

	CallerID         int64
	From             string
	ClientMsgID      string
	To               msg.Address
	Exchange         string // "" unless To was made of Exchange and RoutingKey
	RoutingKey       string
	Type             string
	Data             []byte    // any JSON but null, at most msg.MaxData bytes
	SentAt           time.Time // zero = not given
	Confirm          bool
	MaxSends         int16
	ExpectedReceipts int16 // 1 without Confirm

	// Zero unless a stream has accepted the message.
	AcceptSeq  int64     // its sequence number in the stream
	AcceptedAt time.Time // by the clock of Producer
	Producer   string    // the process that accepted it

	ahead time.Duration // created_at and next_at are this long before now(), so that messages that are saved together keep their order

	Refused *task.Error // why the message must not be saved; nil = save it. If the message was saved before, the result is a replay, not this refusal
}

// Submitted is the result of a Submission.
type Submitted struct {
	State    string // the present state of the message, as msg.Message.State
	Status   msg.Status
	SavedAt  time.Time   // by the database's clock
	Replayed bool        // another call saved the message
	Archived bool        // the message was saved before and is archived
	Refused  *task.Error // why the message was not saved; nil = it is saved

	err error // of this row alone
}
