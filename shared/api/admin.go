package api

import (
	"encoding/json"
	"time"
)

// Page is one page of a list. A page of tasks may be shorter than its limit, and even empty, although more pages
// follow.
type Page[T any] struct {
	Items     []T    `json:"items"`
	NextAfter string `json:"next_after,omitempty"` // pass it as after to get the next page; absent on the last page
}

// ListRequest reads one page of a list: GET /api/v1/admin/blocked-words,
// /api/v1/admin/callers and /api/v1/admin/dead-letters.
type ListRequest struct {
	Limit *int `json:"limit,omitempty"` // 1..200; default 50
	After ID   `json:"after,omitempty"` // next_after of the previous page
}

// TemplateRequest creates a template: POST /api/v1/admin/template.
type TemplateRequest struct {
	TemplateName    string `json:"template_name"`    // 1..100 characters
	TemplateContent string `json:"template_content"` // 1..200 characters; {name} is a placeholder
}

// TemplateChange changes a template: PUT /api/v1/admin/template/{id}. An absent field keeps its value.
type TemplateChange struct {
	TemplateName    *string `json:"template_name,omitempty"`
	TemplateContent *string `json:"template_content,omitempty"`
	IsActive        *bool   `json:"is_active,omitempty"`
}

// TemplatesRequest lists templates, sorted by id: GET /api/v1/admin/template.
type TemplatesRequest struct {
	Limit  *int  `json:"limit,omitempty"`
	After  ID    `json:"after,omitempty"`
	Active *bool `json:"active,omitempty"`
}

// TemplateResponse is a stored template.
type TemplateResponse struct {
	ID              ID        `json:"id"`
	TemplateName    string    `json:"template_name"`
	TemplateContent string    `json:"template_content"`
	IsActive        bool      `json:"is_active"`
	Params          []string  `json:"params"` // the placeholders, in order of first appearance
	CreatedAt       time.Time `json:"created_at"`
	UpdatedAt       time.Time `json:"updated_at"`
}

// PreviewRequest composes a text from a template and parameters. The parameters are in Params, or URL-encoded in Content:
// POST /api/v1/admin/template/{id}/preview, or POST /api/v1/admin/template/preview with TemplateContent.
type PreviewRequest struct {
	TemplateContent string         `json:"template_content,omitempty"`
	Content         string         `json:"content,omitempty"`
	Params          map[string]any `json:"params,omitempty"`
}

// PreviewResponse is the composed text. It is not sent.
type PreviewResponse struct {
	FinalContent  string   `json:"final_content"` // truncated to 2000 characters; missing parameters stay as {name}
	Segments      int      `json:"segments"`
	Encoding      string   `json:"encoding"` // GSM-7 or UCS-2
	Length        int      `json:"length"`   // characters
	MissingParams []string `json:"missing_params"`
	UnusedParams  []string `json:"unused_params"`
	Sendable      bool     `json:"sendable"`          // a submission with this text would be accepted
	Problem       string   `json:"problem,omitempty"` // why it would be refused
}

// DefaultSMSRequest stores the default content of a phone number, for one submission without content: POST
// /api/v1/admin/default-sms.
type DefaultSMSRequest struct {
	PhoneNumber string `json:"phone_number"`
	Content     string `json:"content"` // at most 200 characters: the text, or URL-encoded parameters of the first active template
	UseTemplate bool   `json:"use_template,omitempty"`
}

// DefaultSMSChange changes a default: PUT /api/v1/admin/default-sms/{id}. An absent field keeps its value.
type DefaultSMSChange struct {
	Content     *string `json:"content,omitempty"`
	UseTemplate *bool   `json:"use_template,omitempty"`
}

// DefaultSMSListRequest lists defaults, sorted by id: GET /api/v1/admin/default-sms.
type DefaultSMSListRequest struct {
	Limit       *int   `json:"limit,omitempty"`
	After       ID     `json:"after,omitempty"`
	PhoneNumber string `json:"phone_number,omitempty"` // write + as %2B
	IsSent      *bool  `json:"is_sent,omitempty"`
}

// DefaultSMSResponse is a stored default.
type DefaultSMSResponse struct {
	ID          ID        `json:"id"`
	PhoneNumber string    `json:"phone_number"`
	Content     string    `json:"content"`
	UseTemplate bool      `json:"use_template"`
	IsSent      bool      `json:"is_sent"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// StatisticsResponse counts tasks at one instant: GET /api/v1/admin/statistics of the original SMS API. The embedded
// TaskStatistics counts SMS.
type StatisticsResponse struct {
	TaskStatistics
	Subscribe TaskStatistics `json:"subscribe"` // counts the sends of subscribe messages: the queues wechat and wechat.recorded
}

// TaskStatistics counts the tasks of some queues.
type TaskStatistics struct {
	LiveCounts
	SucceededTasks int64             `json:"succeeded_tasks"`       // since the service was installed
	FailedTasks    int64             `json:"failed_tasks"`          // since the service was installed
	Queues         []QueueStatistics `json:"queues"`                // the queues that have live tasks, sorted by name; at most the 1000 with the most tasks
	MoreQueues     bool              `json:"more_queues,omitempty"` // SMS queues that are not in Queues have live tasks, too
}

// LiveCounts counts tasks that are not final.
type LiveCounts struct {
	ScheduledTasks       int64    `json:"scheduled_tasks"` // also counted as pending_new or pending_retry
	PendingNewTasks      int64    `json:"pending_new_tasks"`
	PendingRetryTasks    int64    `json:"pending_retry_tasks"`
	ProcessingTasks      int64    `json:"processing_tasks"`
	HeldTasks            int64    `json:"held_tasks"`             // included in processing: those that wait for an operator
	OldestPendingSeconds *float64 `json:"oldest_pending_seconds"` // the longest time that a task has been waiting for a sender; null = no task waits for a sender
}

// QueueStatistics are the live tasks of one queue.
type QueueStatistics struct {
	Queue string `json:"queue"`
	LiveCounts
}

// TasksRequest lists tasks, newest first: GET /api/v1/admin/tasks.
type TasksRequest struct {
	State       string     `json:"state,omitempty"`
	Reason      string     `json:"reason,omitempty"`       // of a failure
	PhoneNumber string     `json:"phone_number,omitempty"` // write + as %2B
	Source      string     `json:"source,omitempty"`
	Queue       string     `json:"queue,omitempty"`
	CallerID    *ID        `json:"caller_id,omitempty"`
	From        *time.Time `json:"from,omitempty"` // submitted at this time or later
	To          *time.Time `json:"to,omitempty"`   // submitted before this time
	Limit       *int       `json:"limit,omitempty"`
	After       string     `json:"after,omitempty"`
}

// AdminTask is a task as an operator sees it.
type AdminTask struct {
	TaskResponse
	CallerID   ID         `json:"caller_id"`
	AppID      string     `json:"app_id,omitempty"`     // of the newest claim, also after the claim ended
	ClaimID    ID         `json:"claim_id,omitempty"`   // of the newest claim, also after the claim ended
	ClaimedBy  *ID        `json:"claimed_by,omitempty"` // the caller that made the newest claim; absent if the task was never claimed, or a function of the service made the claim
	LeaseUntil *time.Time `json:"lease_until,omitempty"`
}

// AdminTaskRequest reads a task with its history: GET /api/v1/admin/tasks/{task_id}.
type AdminTaskRequest struct {
	After string `json:"after,omitempty"` // next_after of the previous page
}

// AdminTaskResponse is a task with a page of its history.
type AdminTaskResponse struct {
	Task      AdminTask   `json:"task"`
	Timeline  []TaskEvent `json:"timeline"`             // oldest first; at most the 200 newest lines of receive_logs, send_logs and report_logs each
	NextAfter string      `json:"next_after,omitempty"` // pass it as after to get older events; absent on the last page
}

// TaskEvent is one line of a task's history.
type TaskEvent struct {
	At         time.Time `json:"at"`
	Event      string    `json:"event"` // received, replayed, claimed, extended, report, verdict
	AppID      string    `json:"app_id,omitempty"`
	ClaimID    ID        `json:"claim_id,omitempty"`
	CallerID   *ID       `json:"caller_id,omitempty"`
	CallerName string    `json:"caller_name,omitempty"` // the operator who decided
	State      string    `json:"state,omitempty"`       // the state of the task after the operator's decision
	Status     int       `json:"status,omitempty"`      // what an app reported: 2 = SUCCESS, 3 = FAILED
	StatusCode int       `json:"status_code,omitempty"` // the HTTP status of a submission
	Verdict    string    `json:"verdict,omitempty"`     // the effect of a report, of the end of a lease, or of an operator's decision
	ErrorCode  string    `json:"error_code,omitempty"`
	Message    string    `json:"message,omitempty"`
	RequestID  string    `json:"request_id,omitempty"`
	SourceIP   string    `json:"source_ip,omitempty"`
	UserAgent  string    `json:"user_agent,omitempty"`
}

// RepairRequest retries a failed task or cancels a waiting one:
// POST /api/v1/admin/tasks/{task_id}/retry and .../cancel.
type RepairRequest struct {
	Reason string `json:"reason,omitempty"` // at most 500 characters
}

// RevealResponse has the fields of a task that the console hides: POST /api/v1/admin/tasks/{task_id}/reveal. The service
// records who read them, at most once an hour for each caller and task.
type RevealResponse struct {
	TaskID      string `json:"task_id"`
	PhoneNumber string `json:"phone_number"`
	Content     string `json:"content"`
}

// ResolveRequest settles a held task: POST /api/v1/admin/tasks/{task_id}/resolve.
type ResolveRequest struct {
	Outcome string `json:"outcome"` // succeeded, failed or resend
	Reason  string `json:"reason"`  // 1..500 characters; becomes the task's result
}

// RepairResponse is a task after an operator's decision.
type RepairResponse struct {
	TaskID     string `json:"task_id"`
	Status     int    `json:"status"`
	State      string `json:"state"`
	Reason     string `json:"reason,omitempty"`
	RetryCount int    `json:"retry_count"`
	Result     string `json:"result,omitempty"`
	ErrorCode  string `json:"error_code,omitempty"`
}

// BlockedWordRequest blocks a word: POST /api/v1/admin/blocked-words.
type BlockedWordRequest struct {
	Word string `json:"word"` // 1..100 characters
}

// BlockedWordResponse is a blocked word.
type BlockedWordResponse struct {
	ID        ID        `json:"id"`
	Word      string    `json:"word"`
	CreatedAt time.Time `json:"created_at"`
}

// CallerRequest creates a caller: POST /api/v1/admin/callers.
type CallerRequest struct {
	Name   string   `json:"name"`             // ^[A-Za-z0-9._-]{1,50}$, the Basic user name
	Roles  []string `json:"roles"`            // at least one of submitter, sender, receiver, viewer, trigger, admin
	Queues []string `json:"queues,omitempty"` // the queues it may use; empty = all

	BusinessTypes []string `json:"business_types,omitempty"` // whose subscribe messages it may submit and read; empty = all
	Receives      []string `json:"receives,omitempty"`       // the subjects whose messages it may confirm, such as msg.orders.paid, msg.*.paid or msg.orders.>; empty = none

	// Limits for the caller, counted together with the callers that share its quotas (see CallerResponse.MadeBy). Absent or
	// 0 = the limit of the settings.
	MaxWaitingMessages *int64 `json:"max_waiting_messages,omitempty"` // waiting messages
	MaxWaitingBytes    *int64 `json:"max_waiting_bytes,omitempty"`    // bytes of their data
	MaxWaitingTasks    *int64 `json:"max_waiting_tasks,omitempty"`    // unfinished tasks

	BestPriority *int64 `json:"best_priority,omitempty"` // the smallest priority that it may give to a task, 0 to 5; absent = 0
}

// CallerChange changes what a caller may do: PUT /api/v1/admin/callers/{id}. An absent field keeps its value. An empty
// list of queues or business types means all, an empty Receives means none.
type CallerChange struct {
	Roles         []string `json:"roles,omitempty"`
	Queues        []string `json:"queues"`
	BusinessTypes []string `json:"business_types"`
	Receives      []string `json:"receives"`

	MaxWaitingMessages *int64 `json:"max_waiting_messages,omitempty"` // as in CallerRequest
	MaxWaitingBytes    *int64 `json:"max_waiting_bytes,omitempty"`
	MaxWaitingTasks    *int64 `json:"max_waiting_tasks,omitempty"`

	BestPriority *int64 `json:"best_priority,omitempty"`
}

// CallerNamesRequest reads the names of callers by id, or the id of a caller by name: GET /api/v1/admin/callers/names.
type CallerNamesRequest struct {
	IDs  string `json:"ids,omitempty"` // at most 200, separated by commas
	Name string `json:"name,omitempty"`
}

// CallerNamesResponse has the requested callers that exist; id 0 is the built-in admin.
type CallerNamesResponse struct {
	Callers []NamedCaller `json:"callers"`
}

// NamedCaller is a caller's id and name.
type NamedCaller struct {
	ID   ID     `json:"id"`
	Name string `json:"name"`
}

// CallerResponse is a caller. Each instance caches callers: a change takes effect everywhere within 1 s with NATS, and
// within 60 s without.
type CallerResponse struct {
	ID     ID       `json:"id"`
	Name   string   `json:"name"`
	Roles  []string `json:"roles"`
	Queues []string `json:"queues"`

	BusinessTypes []string `json:"business_types"`
	Receives      []string `json:"receives"`

	MaxWaitingMessages *int64 `json:"max_waiting_messages,omitempty"` // absent = the limit of the settings
	MaxWaitingBytes    *int64 `json:"max_waiting_bytes,omitempty"`
	MaxWaitingTasks    *int64 `json:"max_waiting_tasks,omitempty"`

	BestPriority int64 `json:"best_priority"` // the smallest priority that it may give to a task

	Token     string     `json:"token,omitempty"` // the Basic password; only in the response to its creation or rotation
	CreatedAt time.Time  `json:"created_at"`
	RotatedAt *time.Time `json:"rotated_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`

	// MadeBy is the admin with queues that created the caller, or was the first to rotate the caller's token or to give the
	// caller more rights. The caller shares that admin's quotas.
	MadeBy      *ID      `json:"made_by,omitempty"`
	AlsoChanged []string `json:"also_changed,omitempty"` // in the response to a change: the callers that this caller made (see MadeBy), directly or through others, and that were restricted or revoked with it
}

// ActionsRequest lists the audit log of operators' changes, newest first: GET /api/v1/admin/actions.
type ActionsRequest struct {
	Subject string `json:"subject,omitempty"` // a task's id, or a type and an id, as in template/7
	Limit   *int   `json:"limit,omitempty"`
	After   ID     `json:"after,omitempty"`
}

// ActionResponse is one change by an operator: an entry of the audit log.
type ActionResponse struct {
	ID         ID              `json:"id"`
	At         time.Time       `json:"at"`
	CallerID   ID              `json:"caller_id"`
	CallerName string          `json:"caller_name"`
	RequestID  string          `json:"request_id"`
	Action     string          `json:"action"`
	Subject    string          `json:"subject"`
	Reason     string          `json:"reason,omitempty"`
	Before     json.RawMessage `json:"before,omitempty"`
	After      json.RawMessage `json:"after,omitempty"`
}

// DeadLetterResponse is an event that a function could not process. It is stored for an operator.
type DeadLetterResponse struct {
	ID        ID        `json:"id"`
	Function  string    `json:"function"`
	EventID   string    `json:"event_id"`
	EventType string    `json:"event_type"`
	Event     string    `json:"event"`    // the data of the event as received, truncated to 65,536 characters; "" for a viewer
	Reason    string    `json:"reason"`   // why the event could not be processed
	Attempts  int       `json:"attempts"` // how often the function was called with the event
	CreatedAt time.Time `json:"created_at"`
}

// DismissRequest removes a dead letter: POST
// /api/v1/admin/dead-letters/{id}/dismiss.
type DismissRequest struct {
	Reason string `json:"reason"` // 1..500 characters
}

// AlertsRequest lists the open alerts and then the cleared ones, both newest first: GET /api/v1/admin/alerts.
type AlertsRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..200; default 50
	After string `json:"after,omitempty"` // next_after of the previous page
}

// AlertResponse is a queue or stream that is, or was, over a threshold.
type AlertResponse struct {
	ID           string     `json:"id"`
	Kind         string     `json:"kind"`      // failure_rate, backlog or stream_full
	Queue        string     `json:"queue"`     // for stream_full the stream
	Value        float64    `json:"value"`     // the value that raised the alert: a ratio from 0 to 1, or for backlog the number of pending tasks
	Threshold    float64    `json:"threshold"` // at that time
	Since        time.Time  `json:"since"`
	ClearedAt    *time.Time `json:"cleared_at,omitempty"`    // absent while the alert is open
	ClearedValue *float64   `json:"cleared_value,omitempty"` // the value that cleared the alert
}

// BulkFilter selects the tasks of a bulk change, with the fields of TasksRequest.
type BulkFilter struct {
	State       string     `json:"state"`            // required: scheduled or pending to cancel, failed to retry, held to resolve
	Reason      string     `json:"reason,omitempty"` // of failed tasks
	PhoneNumber string     `json:"phone_number,omitempty"`
	Source      string     `json:"source,omitempty"`
	Queue       string     `json:"queue,omitempty"`
	CallerID    *ID        `json:"caller_id,omitempty"`
	From        *time.Time `json:"from,omitempty"` // submitted at this time or later
	To          *time.Time `json:"to,omitempty"`   // submitted before this time; absent or in the future = now
}

// BulkPreviewRequest counts the tasks that a bulk change would select: POST /api/v1/admin/bulk/preview.
type BulkPreviewRequest struct {
	Action string     `json:"action"` // cancel or retry; for held tasks succeeded, failed or resend
	Filter BulkFilter `json:"filter"`
}

// BulkPreviewResponse has the count, and the filter for BulkRequest. To is set in this filter, so that the bulk change
// leaves out tasks that are submitted later. If more than 1,000,000 tasks match, the preview is refused.
type BulkPreviewResponse struct {
	Action  string     `json:"action"`
	Filter  BulkFilter `json:"filter"`
	Matched int        `json:"matched"`
}

// BulkRequest changes all tasks that match: POST /api/v1/admin/bulk.
type BulkRequest struct {
	Action   string     `json:"action"`
	Filter   BulkFilter `json:"filter"`
	Expected int        `json:"expected"` // Matched of the preview; if more tasks match now, the response is 409 and nothing is changed
	Reason   string     `json:"reason"`   // 1..500 characters; becomes the result of held tasks
}

// BulkListRequest lists bulk changes, newest first: GET /api/v1/admin/bulk.
type BulkListRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..200; default 50
	After string `json:"after,omitempty"` // next_after of the previous page
}

// BulkResponse is a bulk change. The service changes the tasks in batches, in the background.
type BulkResponse struct {
	ID         string     `json:"id"`
	State      string     `json:"state"` // running, finished or stopped
	Action     string     `json:"action"`
	Filter     BulkFilter `json:"filter"`
	Reason     string     `json:"reason"`
	CallerID   ID         `json:"caller_id"`
	CallerName string     `json:"caller_name"`
	Matched    int        `json:"matched"` // the matching tasks at the start of the bulk change
	Looked     int        `json:"looked"`  // tasks that were examined so far
	Changed    int        `json:"changed"`
	Refused    int        `json:"refused"` // tasks that could not be changed, such as those claimed meanwhile
	LastError  string     `json:"last_error,omitempty"`
	StoppedBy  string     `json:"stopped_by,omitempty"`  // the operator who stopped the bulk change
	StopReason string     `json:"stop_reason,omitempty"` // why the service stopped the bulk change, such as that the operator was revoked
	CreatedAt  time.Time  `json:"created_at"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}
