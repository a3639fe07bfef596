package api

import "time"

// QueuesRequest lists the queues that have live tasks or are paused, sorted by name: GET /api/v1/admin/queues.
type QueuesRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..1000; default 1000
	After string `json:"after,omitempty"` // next_after of the previous page
}

// QueuesResponse is a page of queues.
type QueuesResponse struct {
	Queues    []QueueState `json:"queues"`
	NextAfter string       `json:"next_after,omitempty"` // pass it as after to get the next page; absent on the last page
}

// QueueState is a queue with the counts of its live tasks.
type QueueState struct {
	Queue string `json:"queue"`
	LiveCounts
	Pause *QueuePause `json:"pause,omitempty"` // nil = not paused
}

// QueuePause is the pause of a queue. Tasks of a paused queue cannot be claimed.
type QueuePause struct {
	Queue     string     `json:"queue"`
	Until     *time.Time `json:"until,omitempty"` // end of the pause; nil = until the queue is resumed
	Reason    string     `json:"reason"`
	PausedBy  string     `json:"paused_by"` // the caller or the function that paused the queue
	ByHand    bool       `json:"by_hand"`   // paused by a caller, not by a function
	CreatedAt time.Time  `json:"created_at"`
}

// PauseRequest pauses a queue, and replaces an earlier pause: POST /api/v1/admin/queues/{queue}/pause.
type PauseRequest struct {
	Until  *time.Time `json:"until,omitempty"` // in the future, at most a year ahead; nil = until the queue is resumed
	Reason string     `json:"reason"`          // 1..500 characters
}

// ResumeRequest ends a pause: POST /api/v1/admin/queues/{queue}/resume.
type ResumeRequest struct {
	Reason string `json:"reason"` // 1..500 characters
}

// ResumeQueueResponse is a queue after its pause.
type ResumeQueueResponse struct {
	Queue        string `json:"queue"`
	PendingTasks int    `json:"pending_tasks"` // the tasks that waited for the resume; counted up to 1000
}

// SubscribeTemplatesRequest lists the templates of subscribe messages that have strikes (consecutive errors), the paused
// templates first: GET /api/v1/admin/subscribe-templates.
type SubscribeTemplatesRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..200; default 50
	After string `json:"after,omitempty"` // next_after of the previous page
}

// SubscribeTemplatesResponse is a page of templates.
type SubscribeTemplatesResponse struct {
	Templates []SubscribeTemplate `json:"templates"`
	NextAfter string              `json:"next_after,omitempty"` // pass it as after to get the next page; absent on the last page
}

// SubscribeTemplate counts the consecutive errors of a WeChat template for one caller. After the third error, the
// template is paused for this caller until an operator resumes the template.
type SubscribeTemplate struct {
	TemplateID string     `json:"template_id"`
	CallerID   ID         `json:"caller_id"`             // the caller that submitted the messages
	CallerName string     `json:"caller_name,omitempty"` // absent in the response to an admin with queues
	Strikes    int        `json:"strikes"`               // consecutive errors
	PausedAt   *time.Time `json:"paused_at,omitempty"`   // nil = not paused
	Reason     string     `json:"reason"`                // the last error
	UpdatedAt  time.Time  `json:"updated_at"`
}

// ResumeTemplateRequest ends the pause of a template: POST
// /api/v1/admin/subscribe-templates/{template_id}/resume.
type ResumeTemplateRequest struct {
	CallerID *ID    `json:"caller_id,omitempty"` // nil = every caller for which the template is paused
	Reason   string `json:"reason"`              // 1..500 characters
}

// ResumeTemplateResponse is a template after its pause.
type ResumeTemplateResponse struct {
	TemplateID string `json:"template_id"`
	DueTasks   int64  `json:"due_tasks"` // the tasks that the pause had postponed; they are due now
}
