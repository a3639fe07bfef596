package api

import (
	"encoding/json"
	"time"
)

// SubscribeRequest submits one WeChat subscribe message: POST /api/v1/subscribe/send. BusinessType, BusinessID,
// TemplateType and ReceiverUserID together identify the message: it is sent once.
type SubscribeRequest struct {
	TemplateID       string          `json:"template_id"`         // at most 100 characters
	TemplateType     string          `json:"template_type"`       // at most 50 characters, such as BOOKING_CONFIRM
	BusinessType     string          `json:"business_type"`       // at most 50 characters, such as course_booking
	BusinessID       Number          `json:"business_id"`         // such as the id of the booking
	ReceiverUserID   Number          `json:"receiver_user_id"`    // the receiver's id in the business
	ReceiverOpenID   string          `json:"receiver_openid"`     // the receiver's id at WeChat; at most 100 characters
	MessageData      json.RawMessage `json:"message_data"`        // {"thing1": {"value": "Tea"}, ...}
	PagePath         string          `json:"page_path,omitempty"` // the page that a tap on the message opens; at most 1024 characters
	Lang             string          `json:"lang,omitempty"`      // zh_CN, en_US, zh_HK or zh_TW
	MiniprogramState string          `json:"miniprogram_state,omitempty"`
	OnUnknown        string          `json:"on_unknown,omitempty"`  // hold (default), resend, fail
	MaxRetries       *int            `json:"max_retries,omitempty"` // 0..10; default MAX_RETRY_COUNT
	CallbackURL      string          `json:"callback_url,omitempty"`
	SendAt           *time.Time      `json:"send_at,omitempty"`     // not before; at most a year ahead
	TTLSeconds       *int64          `json:"ttl_seconds,omitempty"` // from SendAt, or from now
}

// SubscribeResponse is the result of a submission.
type SubscribeResponse struct {
	ID          ID     `json:"id"`
	TaskID      string `json:"task_id"`                // of the newest send
	SendStatus  int    `json:"send_status"`            // 0 sending, 1 sent, 2 failed
	State       string `json:"state"`                  // of the task
	Skipped     bool   `json:"skipped,omitempty"`      // the message was submitted before, and was sent or is being sent
	DataDiffers bool   `json:"data_differs,omitempty"` // with Skipped: this submission would have sent something else
	Again       bool   `json:"again,omitempty"`        // this is not the first send of the message
	Archived    bool   `json:"archived,omitempty"`     // with Skipped: the message was sent long ago and is archived
}

// SubscribeRecordRequest claims a message that the caller will send itself: POST /api/v1/subscribe/record.
type SubscribeRecordRequest struct {
	SubscribeRequest
	AppID        string `json:"app_id"`                  // 1..50 characters, the app that sends the message
	LeaseSeconds *int   `json:"lease_seconds,omitempty"` // 10..3600; default PROCESSING_TIMEOUT_MINUTES
}

// SubscribeRecordResponse is the claim of a message until LeaseUntil. A skipped message has no claim and must not be
// sent.
type SubscribeRecordResponse struct {
	SubscribeResponse
	ClaimID    ID         `json:"claim_id,omitempty"`
	LeaseUntil *time.Time `json:"lease_until,omitempty"`
}

// SubscribeStatusRequest reports the outcome of a recorded message: POST
// /api/v1/subscribe/{id}/status. Exactly one of SendStatus and Outcome is given.
type SubscribeStatusRequest struct {
	AppID        string `json:"app_id"`
	ClaimID      ID     `json:"claim_id"`                           // of SubscribeRecordResponse
	SendStatus   *int   `json:"send_status,omitempty"`              // 1 sent, 2 failed, 0 still being sent; 0 extends the lease
	Outcome      string `json:"outcome,omitempty"`                  // unknown, instead of a status
	ErrorCode    string `json:"error_code,omitempty"`               // at most 50 characters; default SEND_FAILED
	ErrorMessage string `json:"error_message,omitempty" text:"any"` // truncated to 500 characters, never refused; default 消息发送失败
	ShouldRetry  bool   `json:"should_retry,omitempty"`             // with 2: a retry may help
	LeaseSeconds *int   `json:"lease_seconds,omitempty"`            // with 0: 10..3600 from now; default PROCESSING_TIMEOUT_MINUTES
}

// SubscribeStatusResponse is a recorded message after a report.
type SubscribeStatusResponse struct {
	ID         ID         `json:"id"`
	TaskID     string     `json:"task_id"`
	SendStatus int        `json:"send_status"`
	State      string     `json:"state"`
	Reason     string     `json:"reason,omitempty"`
	RetryCount int        `json:"retry_count"`
	Already    bool       `json:"already,omitempty"`     // a report with the same outcome was applied before
	LeaseUntil *time.Time `json:"lease_until,omitempty"` // after send_status 0
}

// SubscribeSentRequest reads whether a message was sent: GET /api/v1/subscribe/sent.
type SubscribeSentRequest struct {
	BusinessType   string `json:"business_type"`
	BusinessID     Number `json:"business_id"`
	TemplateType   string `json:"template_type"`
	ReceiverUserID Number `json:"receiver_user_id"`
}

// SubscribeSentResponse reports whether any caller has sent the message.
type SubscribeSentResponse struct {
	Sent       bool `json:"sent"`
	ID         ID   `json:"id,omitempty"` // absent, like SendStatus, if the message was never submitted
	SendStatus *int `json:"send_status,omitempty"`
}

// SubscribeLogsRequest lists the messages of one business event: GET
// /api/v1/subscribe/logs.
type SubscribeLogsRequest struct {
	BusinessType string `json:"business_type"`
	BusinessID   Number `json:"business_id"`
	Limit        *int   `json:"limit,omitempty"` // 1..200; default 50
	After        ID     `json:"after,omitempty"` // next_after of the previous page
}

// SubscribeListRequest lists messages that are not archived, newest first: GET
// /api/v1/subscribe/messages.
type SubscribeListRequest struct {
	SendStatus     *int       `json:"send_status,omitempty"` // 0 sending, 1 sent, 2 failed
	TemplateID     string     `json:"template_id,omitempty"`
	TemplateType   string     `json:"template_type,omitempty"`
	BusinessType   string     `json:"business_type,omitempty"`
	ReceiverUserID Number     `json:"receiver_user_id,omitempty"`
	CallerID       *ID        `json:"caller_id,omitempty"` // default: the caller; for an admin or viewer without queues all callers
	From           *time.Time `json:"from,omitempty"`      // send_time at this time or later; default 7 days ago
	To             *time.Time `json:"to,omitempty"`        // send_time before this time
	Limit          *int       `json:"limit,omitempty"`     // 1..200; default 50
	After          string     `json:"after,omitempty"`     // next_after of the previous page
}

// SubscribeFailuresRequest lists the failures, newest first: GET
// /api/v1/subscribe/failures.
type SubscribeFailuresRequest struct {
	Limit *int   `json:"limit,omitempty"` // 1..200; default 10
	After string `json:"after,omitempty"` // next_after of the previous page
}

// SubscribeStatisticsRequest counts messages: GET /api/v1/subscribe/statistics.
type SubscribeStatisticsRequest struct {
	Since *time.Time `json:"since,omitempty"` // only messages with send_time at this time or later; default all
}

// SubscribeRate counts the messages of one template type, or of all types that have no item of their own.
type SubscribeRate struct {
	TemplateType string `json:"template_type"` // empty: all other types
	SubscribeCounts
}

// SubscribeCounts counts messages by their outcome. The rest of Total is being sent.
type SubscribeCounts struct {
	Total       int64   `json:"total"`
	Success     int64   `json:"success"`
	Failed      int64   `json:"failed"`
	SuccessRate float64 `json:"success_rate"` // percent of the total, with two decimals; 0 if the total is 0
}

// SubscribeStatisticsResponse counts all messages, and the messages of each template type.
type SubscribeStatisticsResponse struct {
	SubscribeCounts
	Items []SubscribeRate `json:"items"` // the 1000 types with most messages, sorted by name; then all other types together, if there are any
}

// SubscribeLogResponse is a message: a row of subscribe_message_logs.
type SubscribeLogResponse struct {
	ID             ID              `json:"id"`
	TemplateID     string          `json:"template_id"`
	TemplateType   string          `json:"template_type"`
	BusinessType   string          `json:"business_type"`
	BusinessID     Number          `json:"business_id"`
	ReceiverUserID Number          `json:"receiver_user_id"`
	ReceiverOpenID string          `json:"receiver_openid"`
	MessageData    json.RawMessage `json:"message_data"`
	PagePath       string          `json:"page_path,omitempty"`
	SendStatus     int             `json:"send_status"` // 0 sending, 1 sent, 2 failed
	SendTime       time.Time       `json:"send_time"`   // when it was last submitted or its newest task last changed; of a sent message when it was sent, if the sender reported that
	RetryCount     int             `json:"retry_count"` // of all sends
	ErrorCode      string          `json:"error_code,omitempty"`
	ErrorMessage   string          `json:"error_message,omitempty"`
	CallerID       ID              `json:"caller_id"`
	TaskID         string          `json:"task_id"` // of the newest send
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	Archived       bool            `json:"archived,omitempty"` // SubscribeLogsRequest is the only list with archived messages
}

// SubscribeDetailRequest reads a message with its history: GET
// /api/v1/subscribe/{id}.
type SubscribeDetailRequest struct {
	After string `json:"after,omitempty"` // next_after of the previous page
}

// SubscribeDetailResponse is a message with a page of its history.
type SubscribeDetailResponse struct {
	SubscribeLogResponse
	Sends     []SubscribeSend `json:"sends"`                // newest first, at most 20
	NextAfter string          `json:"next_after,omitempty"` // pass it as after to get older sends; absent on the last page
}

// SubscribeSend is one send of a message: a task of its own.
type SubscribeSend struct {
	TaskID           string          `json:"task_id"`
	TemplateID       string          `json:"template_id"`
	ReceiverOpenID   string          `json:"receiver_openid"`
	MessageData      json.RawMessage `json:"message_data"`
	PagePath         string          `json:"page_path,omitempty"`
	Lang             string          `json:"lang,omitempty"`
	MiniprogramState string          `json:"miniprogram_state,omitempty"`
	State            string          `json:"state,omitempty"` // absent if the task was deleted from the archive; then its outcome is absent too
	Reason           string          `json:"reason,omitempty"`
	Result           string          `json:"result,omitempty"`
	ErrorCode        string          `json:"error_code,omitempty"`
	RetryCount       int             `json:"retry_count"`
	CreatedAt        time.Time       `json:"created_at"`
	SentAt           *time.Time      `json:"sent_at,omitempty"`
}

// SubscribeResendRequest sends a message again: POST /api/v1/subscribe/{id}/resend.
type SubscribeResendRequest struct {
	Reason string `json:"reason,omitempty"` // at most 500 characters; required with Force
	Force  bool   `json:"force,omitempty"`  // even if the message was sent
}
