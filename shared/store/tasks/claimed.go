package tasks

import (
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// ClaimRequest requests up to Limit pending tasks of one queue.
type ClaimRequest struct {
	Queue        string
	AppID        string
	CallerID     int64
	Limit        int
	Lease        time.Duration
	MarksSending bool   // the app promises to mark each task as sending before it sends the message
	WokenUp      bool   // the poller was woken, so the queue probably has tasks
	Request      []byte // the call's parameters as JSON, for send_logs
}

// Claimed is one task claimed by one app until LeaseUntil.
type Claimed struct {
	ID         task.ID
	Priority   int16
	RetryCount int16
	ClaimID    int64
	LeaseUntil time.Time
	Phone      string
	Content    string

	request  int  // index of the task's request among the requests of the statement
	bodiless bool // the task has no row in tasks; only an attacker who controls a function can delete that row
}
