package api

import "time"

// OverviewResponse is the state of the whole service at one instant, with counters: GET /api/v1/admin/overview. Each
// instance caches it for five seconds. A caller with queues gets only these queues and their alerts.
type OverviewResponse struct {
	At        time.Time `json:"at"`         // when the state was read; an old time means that the database is unavailable
	CountedTo time.Time `json:"counted_to"` // counters and throughput include what happened before this time

	Queues      []QueueOverview  `json:"queues"`                 // sorted by name; at most 200
	OtherQueues *QueueOverview   `json:"other_queues,omitempty"` // the sum of all other queues, without a name; absent if there are none
	Senders     []SenderOverview `json:"senders,omitempty"`      // apps, the newest claim first
	Alerts      []AlertResponse  `json:"alerts"`                 // the open alerts, newest first; at most 100

	Service *ServiceOverview `json:"service,omitempty"` // absent for a caller with queues
}

// Count is a number of rows. Counting stops at a limit.
type Count struct {
	N    int  `json:"n"`
	More bool `json:"more,omitempty"` // there are more than n
}

// Backlog counts waiting rows.
type Backlog struct {
	Count
	OldestSeconds float64 `json:"oldest_seconds"` // how long the oldest has waited; 0 if there is none
}

// QueueOverview is one queue.
type QueueOverview struct {
	Queue      string      `json:"queue"`
	Scheduled  Count       `json:"scheduled"` // wait for their send time or for a retry
	Pending    Backlog     `json:"pending"`
	Retries    Count       `json:"retries"`    // included in pending: those that were claimed before
	Processing Backlog     `json:"processing"` // oldest_seconds: since the oldest one was claimed or extended
	Held       Backlog     `json:"held"`
	Pause      *QueuePause `json:"pause,omitempty"` // absent = not paused

	Submitted     int64            `json:"submitted"` // this and the following fields are counters
	Claims        int64            `json:"claims"`    // of finished tasks, at most 100 of each
	LeaseTimeouts int64            `json:"lease_timeouts"`
	Succeeded     int64            `json:"succeeded"`
	Failed        map[string]int64 `json:"failed"`     // by reason
	Throughput    []Throughput     `json:"throughput"` // one for each five minutes of the last six hours, oldest first; empty if there were no tasks
}

// Throughput is what happened in a queue within five minutes.
type Throughput struct {
	Since     time.Time `json:"since"`
	Submitted int64     `json:"submitted"`
	Succeeded int64     `json:"succeeded"`
	Failed    int64     `json:"failed"`
}

// SenderOverview is one sender app.
type SenderOverview struct {
	AppID      string     `json:"app_id"`
	Processing Count      `json:"processing"` // tasks that the app has claimed and not reported
	Succeeded  int64      `json:"succeeded"`  // reports of success; this and the following fields are counters
	Failed     int64      `json:"failed"`     // reports of failure, including those of tasks that were retried later
	Timeouts   int64      `json:"timeouts"`
	LastClaim  *time.Time `json:"last_claim,omitempty"`
	LastReport *time.Time `json:"last_report,omitempty"`
}

// ServiceOverview is the part of the overview that belongs to no queue.
type ServiceOverview struct {
	PausedStreams   []string `json:"paused_streams"`   // NATS streams that refused the last publish
	PausedTemplates Count    `json:"paused_templates"` // of subscribe messages
	DeadLetters     Count    `json:"dead_letters"`
	Events          Backlog  `json:"events"` // wait to be published

	MessagesDue   Backlog `json:"messages_due"`
	StuckSending  Count   `json:"stuck_sending"`  // messages without remaining sends that no stream or receiver ever accepted
	StuckSent     Count   `json:"stuck_sent"`     // messages without remaining sends that the receiver did not confirm
	DeliveriesDue Backlog `json:"deliveries_due"` // of webhooks

	DeliveriesRetrying Count `json:"deliveries_retrying"`
	Delivered          int64 `json:"delivered"`         // counter
	DeliveriesFailed   int64 `json:"deliveries_failed"` // counter
	EndpointsFailing   int   `json:"endpoints_failing"` // enabled endpoints that failed after their last success
	EndpointsDisabled  int   `json:"endpoints_disabled"`
}

// SearchRequest finds all rows that a text may identify: GET /api/v1/admin/search.
type SearchRequest struct {
	Query string `json:"q"` // 1..300 characters: an id, phone number, idempotency key, claim id, request id or name of a caller
}

// SearchResponse has the rows that were found.
type SearchResponse struct {
	Found       []SearchHit `json:"found"`                  // tasks, messages and others that the caller may read
	PhoneNumber string      `json:"phone_number,omitempty"` // the text, if it is a phone number: TasksRequest lists the tasks of the number
	Complete    bool        `json:"complete"`               // false = request ids and old claims were not searched everywhere, because that takes too long
}

// SearchHit is one row that was found.
type SearchHit struct {
	Kind  string `json:"kind"` // task, message, delivery, subscribe or caller
	ID    string `json:"id"`
	State string `json:"state,omitempty"`
}
