package api

import "time"

// QueuesRequest lists the queues that have live tasks or are paused, by name: GET
// /api/v1/admin/queues.
type QueuesRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..1000; default 1000
	After string `json:"after,omitempty"` // next_after of the page before
}

// QueuesResponse is a page of them.
type QueuesResponse struct {
	Queues    []QueueState `json:"queues"`
	NextAfter string       `json:"next_after,omitempty"` // give it as after to get the next page; absent on the last
}

// QueueState is a queue with the counts of its live tasks.
type QueueState struct {
	Queue string `json:"queue"`
	LiveCounts
	Pause *QueuePause `json:"pause,omitempty"` // nil = it is not paused
}

// QueuePause keeps a queue from handing out tasks.
type QueuePause struct {
	Queue     string     `json:"queue"`
	Until     *time.Time `json:"until,omitempty"` // end of the pause; nil = until the queue is resumed
	Reason    string     `json:"reason"`
	PausedBy  string     `json:"paused_by"` // the caller, or the function that did so by itself
	ByHand    bool       `json:"by_hand"`   // by a caller
	CreatedAt time.Time  `json:"created_at"`
}

// PauseRequest pauses a queue, whatever pause it had: POST
// /api/v1/admin/queues/{queue}/pause.
type PauseRequest struct {
	Until  *time.Time `json:"until,omitempty"` // in the future, at most a year ahead; nil = until it is resumed
	Reason string     `json:"reason"`          // 1..500 characters
}

// ResumeRequest ends a pause: POST /api/v1/admin/queues/{queue}/resume.
type ResumeRequest struct {
	Reason string `json:"reason"` // 1..500 characters
}

// ResumeQueueResponse is a queue that goes on.
type ResumeQueueResponse struct {
	Queue        string `json:"queue"`
	PendingTasks int    `json:"pending_tasks"` // that waited for this; counted up to 1000
}

// SubscribeTemplatesRequest lists the templates of subscribe messages with errors
// in a row, the paused ones first: GET /api/v1/admin/subscribe-templates.
type SubscribeTemplatesRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..200; default 50
	After string `json:"after,omitempty"` // next_after of the page before
}

// SubscribeTemplatesResponse is a page of them.
type SubscribeTemplatesResponse struct {
	Templates []SubscribeTemplate `json:"templates"`
	NextAfter string              `json:"next_after,omitempty"` // send it as after to get the next page; absent on the last
}

// SubscribeTemplate is a template of WeChat's as one caller uses it. With the third
// error in a row it is paused for this caller, until an operator resumes it.
type SubscribeTemplate struct {
	TemplateID string     `json:"template_id"`
	CallerID   ID         `json:"caller_id"`             // who ordered the messages
	CallerName string     `json:"caller_name,omitempty"` // the caller's; an admin with queues does not see it
	Strikes    int        `json:"strikes"`               // errors in a row
	PausedAt   *time.Time `json:"paused_at,omitempty"`   // nil = it is not paused yet
	Reason     string     `json:"reason"`                // the newest error
	UpdatedAt  time.Time  `json:"updated_at"`
}

// ResumeTemplateRequest ends the pause of a template: POST
// /api/v1/admin/subscribe-templates/{template_id}/resume.
type ResumeTemplateRequest struct {
	CallerID *ID    `json:"caller_id,omitempty"` // nil = every caller for which it is paused
	Reason   string `json:"reason"`              // 1..500 characters
}

// ResumeTemplateResponse is a template that goes on.
type ResumeTemplateResponse struct {
	TemplateID string `json:"template_id"`
	DueTasks   int64  `json:"due_tasks"` // that were given back and are due now
}
