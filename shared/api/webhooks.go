package api

import (
	"encoding/json"
	"time"
)

// EndpointRequest registers a URL for the events of the caller's tasks and endpoints, and for alerts if the caller is an
// admin: POST /api/v1/webhooks/endpoints.
type EndpointRequest struct {
	URL         string   `json:"url"`                   // http or https, at most 2000 bytes
	Description string   `json:"description,omitempty"` // at most 200 characters
	Events      []string `json:"events,omitempty"`      // such as task.succeeded; default all
	Format      string   `json:"format,omitempty"`      // cloudevents (default), or a chat robot: slack, dingtalk, wecom or feishu
	Secret      string   `json:"secret,omitempty"`      // for the signatures that a robot of dingtalk or feishu requires
}

// EndpointResponse is a registered URL.
type EndpointResponse struct {
	ID             string     `json:"id"`
	CallerID       ID         `json:"caller_id"`
	URL            string     `json:"url"`
	Description    string     `json:"description,omitempty"`
	Events         []string   `json:"events"` // the events that the URL receives; empty = all
	Format         string     `json:"format"` // cloudevents, slack, dingtalk, wecom or feishu
	Enabled        bool       `json:"enabled"`
	DisabledReason string     `json:"disabled_reason,omitempty"` // gone (the URL returned 410), failing (for too long) or by_hand
	DisabledAt     *time.Time `json:"disabled_at,omitempty"`
	FailingSince   *time.Time `json:"failing_since,omitempty"` // the first failure since the last success
	CreatedAt      time.Time  `json:"created_at"`
	RotatedAt      *time.Time `json:"rotated_at,omitempty"`
	OldSecretUntil *time.Time `json:"old_secret_until,omitempty"` // the previous secret signs, too, until then
	Secret         string     `json:"secret,omitempty"`           // whsec_ and base64; only in the response that creates or rotates the secret; absent for a robot
}

// EndpointsRequest lists registered URLs, sorted by id: GET /api/v1/webhooks/endpoints.
type EndpointsRequest struct {
	CallerID *ID    `json:"caller_id,omitempty"` // default: the caller; for an admin or viewer without queues all callers
	Limit    *int   `json:"limit,omitempty"`     // 1..200; default 50
	After    string `json:"after,omitempty"`     // next_after of the previous page
}

// SigningSecretResponse has the secret that signs the calls to a caller's callback_urls and the caller's messages to
// URLs: GET /api/v1/webhooks/signing-secret.
type SigningSecretResponse struct {
	Secret         string     `json:"secret"`                     // whsec_ and base64
	OldSecretUntil *time.Time `json:"old_secret_until,omitempty"` // the previous secret signs, too, until then
}

// DeliveriesRequest lists deliveries, newest first: GET
// /api/v1/webhooks/deliveries.
type DeliveriesRequest struct {
	State      string     `json:"state,omitempty"` // pending, delivered or failed
	EndpointID string     `json:"endpoint_id,omitempty"`
	TaskID     string     `json:"task_id,omitempty"`
	CallerID   *ID        `json:"caller_id,omitempty"` // default: the caller; for an admin or viewer without queues all callers
	From       *time.Time `json:"from,omitempty"`      // recorded at this time or later
	To         *time.Time `json:"to,omitempty"`        // recorded before this time
	Limit      *int       `json:"limit,omitempty"`     // 1..200; default 50
	After      string     `json:"after,omitempty"`     // next_after of the previous page
}

// DeliveriesResendRequest resends failed deliveries: POST
// /api/v1/webhooks/deliveries/resend.
type DeliveriesResendRequest struct {
	Since      time.Time `json:"since"`                 // only deliveries that failed at this time or later
	EndpointID string    `json:"endpoint_id,omitempty"` // only deliveries to this endpoint
	CallerID   *ID       `json:"caller_id,omitempty"`   // default: the caller; for an admin without queues all callers
	Limit      *int      `json:"limit,omitempty"`       // 1..500 deliveries; default 500
	Reason     string    `json:"reason,omitempty"`      // at most 500 characters
}

// DeliveriesResendResponse counts the deliveries that were resent.
type DeliveriesResendResponse struct {
	Resent int  `json:"resent"`
	More   bool `json:"more"` // more may be left: repeat the call
}

// DeliveryResponse is the delivery of one event to one URL.
type DeliveryResponse struct {
	ID         string          `json:"id"`
	EventID    string          `json:"event_id"` // the webhook-id, the same in every try
	EventType  string          `json:"event_type"`
	Subject    string          `json:"subject"`     // the id of the task, of the endpoint that was disabled, of the alert or of the test
	EndpointID string          `json:"endpoint_id"` // for a callback_url the id of the caller's signing secret
	URL        string          `json:"url"`
	State      string          `json:"state"`             // pending, delivered or failed
	Attempts   int             `json:"attempts"`          // tries made, resends included
	NextAt     *time.Time      `json:"next_at,omitempty"` // the next try is not earlier; absent if no try follows
	CreatedAt  time.Time       `json:"created_at"`
	FinishedAt *time.Time      `json:"finished_at,omitempty"`
	Tries      []DeliveryTry   `json:"tries"`             // oldest first, the last 50
	Payload    json.RawMessage `json:"payload,omitempty"` // only when one delivery is read: the body, or for a robot the event that its text describes
	Text       string          `json:"text,omitempty"`    // only when one delivery is read: the text that a robot gets if no other event is sent with this one
}

// DeliveryTry is one POST of a delivery.
type DeliveryTry struct {
	At         time.Time `json:"at"`
	Status     int       `json:"status,omitempty"` // of HTTP; absent when there was no response
	DurationMS int64     `json:"duration_ms"`
	Error      string    `json:"error,omitempty"`    // why the try counts as failed
	Response   string    `json:"response,omitempty"` // the beginning of the response
}

// WebhookEvent is the body that a webhook's URL gets: a CloudEvent in JSON. Verify it with VerifyWebhook before
// decoding it.
type WebhookEvent struct {
	SpecVersion     string    `json:"specversion"` // 1.0
	ID              string    `json:"id"`          // the webhook-id; identifies a repeat
	Source          string    `json:"source"`
	Type            string    `json:"type"` // such as sendonce.task.succeeded.v1
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"` // when the event happened
	DataContentType string    `json:"datacontenttype"`
	Sequence        string    `json:"sequence"` // 20 digits; grows from event to event of one subject, with gaps
	Data            JSON      `json:"data"`
}

// TaskEventData is the data of an event sendonce.task.<state>.v1: the task at the time of the event, without phone
// number and content.
type TaskEventData struct {
	TaskID    string          `json:"task_id"`
	State     string          `json:"state"`
	Status    int             `json:"status"`
	Reason    string          `json:"reason,omitempty"`
	Result    string          `json:"result,omitempty"`
	ErrorCode string          `json:"error_code,omitempty"` // of the sender, or of the service, such as timeout_failed
	Source    string          `json:"source,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	SentAt    *time.Time      `json:"sent_at,omitempty"`
}

// EndpointEventData is the data of an event sendonce.webhook.disabled.v1.
type EndpointEventData struct {
	EndpointID   string     `json:"endpoint_id"`
	URL          string     `json:"url"`
	Reason       string     `json:"reason"`                  // gone or failing
	FailingSince *time.Time `json:"failing_since,omitempty"` // the first failure since the last success
}

// TestEventData is the data of an event sendonce.test.v1.
type TestEventData struct {
	EndpointID string `json:"endpoint_id"`
}

// AlertEventData is the data of an event sendonce.alert.raised.v1 or
// sendonce.alert.cleared.v1.
type AlertEventData struct {
	AlertID   string     `json:"alert_id"`             // the same for both events of one incident
	Kind      string     `json:"kind"`                 // failure_rate, backlog or stream_full
	Queue     string     `json:"queue"`                // for stream_full the stream
	Value     float64    `json:"value"`                // the value that raised or cleared the alert: a ratio from 0 to 1, or for backlog the number of pending tasks
	Threshold float64    `json:"threshold"`            // when the alert was raised
	Since     time.Time  `json:"since"`                // when the alert was raised
	ClearedAt *time.Time `json:"cleared_at,omitempty"` // absent while the alert is open
}
