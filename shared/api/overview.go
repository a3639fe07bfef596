package api

import "time"

// OverviewResponse is the state of the whole service at one instant, with counters: GET /api/v1/admin/overview. Each
// instance reads it at most every five seconds. A caller with queues gets only these queues and their alerts.
type OverviewResponse struct {
	At        time.Time `json:"at"`         // when the state was read; older than a few seconds if the database is unavailable
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
	More bool `json:"more,omitempty"` // counting stopped at a limit, so there may be more than n
}

// Backlog counts waiting rows.
type Backlog struct {
	Count
	OldestSeconds float64 `json:"oldest_seconds"` // how long the row that has waited longest has waited; 0 if none waits
}

// QueueOverview is one queue.
type QueueOverview struct {
	Queue      string      `json:"queue"`
	Scheduled  Count       `json:"scheduled"` // wait for their send time or for a retry
	Pending    Backlog     `json:"pending"`
	Retries    Count       `json:"retries"`    // the tasks of pending with a retry_count above 0
	Processing Backlog     `json:"processing"` // oldest_seconds: the longest time since a task was claimed or its lease last extended
	Held       Backlog     `json:"held"`
	Pause      *QueuePause `json:"pause,omitempty"` // absent = not paused

	Submitted     int64            `json:"submitted"` // a counter, like the four fields below
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
	Succeeded  int64      `json:"succeeded"`  // applied reports of success; a counter, like failed and timeouts
	Failed     int64      `json:"failed"`     // applied reports of failure, including those of tasks that were retried later
	Timeouts   int64      `json:"timeouts"`   // leases that expired
	LastClaim  *time.Time `json:"last_claim,omitempty"`
	LastReport *time.Time `json:"last_report,omitempty"`
}

// ServiceOverview is the part of the overview that belongs to no queue.
type ServiceOverview struct {
	PausedStreams   []string `json:"paused_streams"`   // NATS streams that accepted nothing when they were last tried
	PausedTemplates Count    `json:"paused_templates"` // of subscribe messages
	DeadLetters     Count    `json:"dead_letters"`
	Events          Backlog  `json:"events"` // rows of event_outbox, each with one or more events that wait to be published

	MessagesDue   Backlog `json:"messages_due"`
	StuckSending  Count   `json:"stuck_sending"`  // messages without remaining sends that no stream or receiver ever accepted
	StuckSent     Count   `json:"stuck_sent"`     // messages without remaining sends that have fewer confirmations than expected
	DeliveriesDue Backlog `json:"deliveries_due"` // of webhooks

	DeliveriesRetrying Count `json:"deliveries_retrying"`
	Delivered          int64 `json:"delivered"`         // counter
	DeliveriesFailed   int64 `json:"deliveries_failed"` // counter
	EndpointsFailing   int   `json:"endpoints_failing"` // enabled endpoints to which nothing was delivered since their last failure
	EndpointsDisabled  int   `json:"endpoints_disabled"`
}

// SearchRequest finds the rows that a text may identify: GET /api/v1/admin/search.
type SearchRequest struct {
	Query string `json:"q"` // 1..300 characters: an id, phone number, idempotency key, claim id, request id or name of a caller
}

// SearchResponse has the rows that were found.
type SearchResponse struct {
	Found       []SearchHit `json:"found"`                  // tasks, messages and others that the caller may read
	PhoneNumber string      `json:"phone_number,omitempty"` // the text, if it is a phone number: TasksRequest lists the tasks of the number
	Complete    bool        `json:"complete"`               // false = request ids, old claims, or keys of old callers were not searched everywhere, because that takes too long
}

// SearchHit is one row that was found.
type SearchHit struct {
	Kind  string `json:"kind"` // task, message, delivery, subscribe or caller
	ID    string `json:"id"`
	State string `json:"state,omitempty"`
}
