package subscribe

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// Submission is a request to send a subscribe message. BusinessType, BusinessID, TemplateType and ReceiverUserID are the
// key of the message: at most one row has this key.
type Submission struct {
	TaskID task.ID // unique to this call of Submit, so that a repeated transaction recognises its earlier try

	TemplateID       string
	TemplateType     string
	BusinessType     string
	BusinessID       uint64
	ReceiverUserID   uint64
	ReceiverOpenID   string
	Data             []byte // JSON
	Page             string // "" = none
	Lang             string // "" = WeChat's default
	MiniprogramState string // "" = WeChat's default

	CallerID    int64
	Queue       string // task.WeChatQueue or task.RecordedQueue
	MaxRetries  int16
	OnUnknown   task.Policy
	CallbackURL string
	Metadata    []byte    // a JSON object for the task's events
	SendAt      time.Time // zero = at once
	TTL         time.Duration

	// Zero unless the caller itself sends the message: then the task is created as claimed.
	AppID string
	Lease time.Duration

	// Refused is the error of a submission that must be refused. But if the message was sent or is being sent, the
	// submission is skipped without an error.
	Refused *task.Error
	// MayResendOthers allows the caller to send a failed message of another caller again, and to see whether the data
	// of another caller's message differs.
	MayResendOthers bool
	// HidesOthers refuses the submission of another caller's message, whatever its state.
	HidesOthers bool
}

// summary returns the content of the task, for people. The data of the message is stored with the send.
func (s *Submission) summary() string {
	return fmt.Sprintf("%s %s/%d -> %d", s.TemplateType, s.BusinessType, s.BusinessID, s.ReceiverUserID)
}

// key returns the columns of the unique index uk_business_template_receiver.
func (s *Submission) key() []any {
	return []any{s.BusinessType, strconv.FormatUint(s.BusinessID, 10), s.TemplateType, strconv.FormatUint(s.ReceiverUserID, 10)}
}

// mustHide reports whether the response must show nothing about a message of owner.
func (s *Submission) mustHide(owner int64) bool {
	return s.HidesOthers && owner != s.CallerID
}

// mayCompare reports whether the response may show that owner's message has other data. Without this check, a caller
// could guess the data of another caller.
func (s *Submission) mayCompare(owner int64) bool { return s.MayResendOthers || owner == s.CallerID }

// ErrOthersMessage is the refusal of access to another caller's message, whatever its state.
func ErrOthersMessage() error {
	return task.Refuse(task.CodeForbidden, "another caller submitted this message; only that caller or an admin may send or query it")
}

// Submitted is the result of a Submission.
type Submitted struct {
	ID          int64 // of the row
	TaskID      task.ID
	Status      task.SendStatus // of the message
	State       task.State      // of the task, archived or not
	Skipped     bool            // the message was sent or is being sent: nothing was done
	DataDiffers bool            // with Skipped: the data of this submission is not that of the message
	Again       bool            // this is not the first send of the message
	Archived    bool            // with Skipped: the row is archived
	ClaimID     int64           // of a task that was created as claimed; else 0
	LeaseUntil  time.Time
}

// taskState returns the state of a message's task. A task that was not found is archived: then the status of the message
// decides.
func taskState(t task.Task, found bool, status task.SendStatus) task.State {
	switch {
	case found:
		return t.State
	case status == task.SubscribeSent:
		return task.Succeeded
	default:
		return task.Failed
	}
}
