package api

import (
	"encoding/json"
	"time"
)

// SendRequest submits one SMS: POST /api/v1/sms/send. Only PhoneNumber is required. Without Content and Params, the
// stored default content of the number is sent.
type SendRequest struct {
	PhoneNumber    string          `json:"phone_number"`
	Content        string          `json:"content,omitempty"`                     // the text, or the URL-encoded parameters of a template
	UseTemplate    *bool           `json:"use_template,omitempty"`                // default false; with TemplateID, TemplateName or Params it is true, and false is refused
	Source         string          `json:"source,omitempty"`                      // at most 50 characters
	IdempotencyKey string          `json:"idempotency_key,omitempty" text:"some"` // ^[A-Za-z0-9._:-]{1,255}$; package decode reads the tag text and refuses ""
	TemplateID     ID              `json:"template_id,omitempty"`
	TemplateName   string          `json:"template_name,omitempty"`
	Params         map[string]any  `json:"params,omitempty"`      // the parameters, instead of Content
	Priority       *int            `json:"priority,omitempty"`    // 0 highest .. 9; default 5
	SendAt         *time.Time      `json:"send_at,omitempty"`     // not before; at most a year ahead
	TTLSeconds     *int64          `json:"ttl_seconds,omitempty"` // from SendAt, or from now; not together with ExpiresAt
	ExpiresAt      *time.Time      `json:"expires_at,omitempty"`
	MaxRetries     *int            `json:"max_retries,omitempty"` // 0..10; default MAX_RETRY_COUNT
	OnUnknown      string          `json:"on_unknown,omitempty"`  // resend (default), hold, fail
	Queue          string          `json:"queue,omitempty"`       // default "default"; at most 63 bytes
	CallbackURL    string          `json:"callback_url,omitempty"`
	Metadata       json.RawMessage `json:"metadata,omitempty"` // a JSON object of at most 4 KiB
}

// SendResponse is the task of a submission.
type SendResponse struct {
	TaskID       string   `json:"task_id"`
	Status       int      `json:"status"`
	State        string   `json:"state"`
	FinalContent string   `json:"final_content"`
	Segments     int      `json:"segments"`
	Encoding     string   `json:"encoding"` // GSM-7 or UCS-2
	UnusedParams []string `json:"unused_params,omitempty"`
	Archived     bool     `json:"archived,omitempty"` // this is a repeat, and the task is final and archived
}

// SendBatchRequest submits up to 1,000 SMS: POST /api/v1/sms/send/batch. Each item is a SendRequest, and is accepted or
// refused by itself.
type SendBatchRequest struct {
	Items []json.RawMessage `json:"items"`
}

// BatchItem is the response to one item. It has the form of the response to a call with this item alone.
type BatchItem struct {
	Code     int     `json:"code"`
	Message  string  `json:"message"`
	Data     any     `json:"data,omitempty"`
	Error    string  `json:"error,omitempty"`
	Fields   []Field `json:"fields,omitempty"`
	Replayed bool    `json:"replayed,omitempty"`
}

// BatchResponse has the results of the items in order.
type BatchResponse struct {
	Items []BatchItem `json:"items"`
}

// TaskResponse is a task as its submitter sees it: GET /api/v1/sms/task/{task_id}.
type TaskResponse struct {
	TaskID      string          `json:"task_id"`
	PhoneNumber string          `json:"phone_number"`
	Content     string          `json:"content"`
	Status      int             `json:"status"`
	State       string          `json:"state"`
	Reason      string          `json:"reason,omitempty"`
	Result      string          `json:"result,omitempty"`
	ErrorCode   string          `json:"error_code,omitempty"` // of the sender, or of the service, such as timeout_retry
	Source      string          `json:"source,omitempty"`
	Queue       string          `json:"queue"`
	Priority    int             `json:"priority"`
	RetryCount  int             `json:"retry_count"`
	MaxRetries  int             `json:"max_retries"`
	OnUnknown   string          `json:"on_unknown"`
	Segments    int             `json:"segments"`
	Encoding    string          `json:"encoding"`
	CallbackURL string          `json:"callback_url,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
	CreatedAt   time.Time       `json:"created_at"`
	SendAt      *time.Time      `json:"send_at,omitempty"`
	ExpiresAt   *time.Time      `json:"expires_at,omitempty"`
	SentAt      *time.Time      `json:"sent_at,omitempty"`
	ReportedAt  *time.Time      `json:"reported_at,omitempty"`
	Archived    bool            `json:"archived,omitempty"` // final and archived
}

// ClaimRequest claims tasks: GET or POST /api/v1/sms/tasks/pending.
type ClaimRequest struct {
	AppID        string `json:"app_id"`
	Limit        *int   `json:"limit,omitempty"`         // 1..1000; default 10
	Queue        string `json:"queue,omitempty"`         // default "default"
	LeaseSeconds *int   `json:"lease_seconds,omitempty"` // 10..3600; default PROCESSING_TIMEOUT_MINUTES
	MarksSending bool   `json:"marks_sending,omitempty"` // the app marks each task as sending before it sends
	Wait         *int   `json:"wait,omitempty"`          // seconds to wait for work, 0..30
}

// ClaimedTask is a task that an app has claimed until LeaseUntil.
type ClaimedTask struct {
	TaskID      string    `json:"task_id"`
	PhoneNumber string    `json:"phone_number"`
	Content     string    `json:"content"`
	ClaimID     ID        `json:"claim_id"` // belongs in the report; compare for equality only
	LeaseUntil  time.Time `json:"lease_until"`
	RetryCount  int       `json:"retry_count"`
}

// ExtendRequest extends a lease: POST /api/v1/sms/tasks/{task_id}/extend.
type ExtendRequest struct {
	AppID        string `json:"app_id"`
	ClaimID      ID     `json:"claim_id,omitempty"`
	LeaseSeconds *int   `json:"lease_seconds,omitempty"` // 10..3600 from now; default PROCESSING_TIMEOUT_MINUTES
	Sending      bool   `json:"sending,omitempty"`       // marks the task as sending: the app is about to send it
}

// ExtendResponse is the lease after its extension.
type ExtendResponse struct {
	TaskID     string    `json:"task_id"`
	ClaimID    ID        `json:"claim_id"`
	LeaseUntil time.Time `json:"lease_until"`
	Sending    bool      `json:"sending"`
}

// ReportRequest reports one attempt: POST /api/v1/sms/report.
type ReportRequest struct {
	TaskID            string     `json:"task_id"`
	AppID             string     `json:"app_id,omitempty"` // default in a batch: the app_id of the batch
	ClaimID           ID         `json:"claim_id,omitempty"`
	Status            *int       `json:"status,omitempty"`                   // 2 = SUCCESS, 3 = FAILED
	ErrorMessage      string     `json:"error_message,omitempty" text:"any"` // truncated to 500 characters, never refused
	ErrorCode         string     `json:"error_code,omitempty"`               // at most 50 characters
	ShouldRetry       bool       `json:"should_retry,omitempty"`
	Outcome           string     `json:"outcome,omitempty"`             // unknown or released, instead of status
	RetryAfterSeconds *int64     `json:"retry_after_seconds,omitempty"` // with released
	SentAt            *time.Time `json:"sent_at,omitempty"`
}

// ReportResponse is the task after a report.
type ReportResponse struct {
	TaskID     string `json:"task_id"`
	Status     int    `json:"status"`
	State      string `json:"state"`
	Reason     string `json:"reason,omitempty"`
	RetryCount int    `json:"retry_count"`
	Already    bool   `json:"already,omitempty"` // a report with the same outcome was applied before
}

// ReportBatchRequest reports up to 1,000 attempts of one app: POST /api/v1/sms/report/batch.
type ReportBatchRequest struct {
	AppID string            `json:"app_id"`
	Items []json.RawMessage `json:"items"` // each a ReportRequest
}
