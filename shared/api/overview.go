package api

import "time"

// OverviewResponse is the state of everything at one instant, with counters: GET /api/v1/admin/overview. All
// callers of an instance share one for five seconds. A caller with queues gets these queues and their alerts alone.
type OverviewResponse struct {
	At        time.Time `json:"at"`         // when it was read; an old time means that the database is away
	CountedTo time.Time `json:"counted_to"` // counters and throughput have what happened before this time

	Queues      []QueueOverview  `json:"queues"`                 // by name; at most 200
	OtherQueues *QueueOverview   `json:"other_queues,omitempty"` // the sum of the others, without a name; absent when there are none
	Senders     []SenderOverview `json:"senders,omitempty"`      // apps, those that claimed last first
	Alerts      []AlertResponse  `json:"alerts"`                 // open ones, newest first; at most 100

	Service *ServiceOverview `json:"service,omitempty"` // absent for a caller with queues
}

// Count is a number of rows. Counting stops at a limit.
type Count struct {
	N    int  `json:"n"`
	More bool `json:"more,omitempty"` // there are more than n
}

// Backlog is what waits.
type Backlog struct {
	Count
	OldestSeconds float64 `json:"oldest_seconds"` // how long the first of them has been waiting; 0 when none waits
}

// QueueOverview is one queue.
type QueueOverview struct {
	Queue      string      `json:"queue"`
	Scheduled  Count       `json:"scheduled"` // until their send time, or for a retry
	Pending    Backlog     `json:"pending"`
	Retries    Count       `json:"retries"`    // those of pending that were claimed before
	Processing Backlog     `json:"processing"` // oldest_seconds: since the oldest of them was claimed or extended
	Held       Backlog     `json:"held"`
	Pause      *QueuePause `json:"pause,omitempty"` // absent when it is not paused

	Submitted     int64            `json:"submitted"` // this and the next ones are counters
	Claims        int64            `json:"claims"`
	LeaseTimeouts int64            `json:"lease_timeouts"`
	Succeeded     int64            `json:"succeeded"`
	Failed        map[string]int64 `json:"failed"`     // by reason
	Throughput    []Throughput     `json:"throughput"` // of the last six hours, oldest first, one for each five minutes in which something happened
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
	Processing Count      `json:"processing"` // tasks that it has claimed and not reported
	Succeeded  int64      `json:"succeeded"`  // reports of success; this and the next ones are counters
	Failed     int64      `json:"failed"`     // reports of failure, also of tasks that were retried since
	Timeouts   int64      `json:"timeouts"`
	LastClaim  *time.Time `json:"last_claim,omitempty"`
	LastReport *time.Time `json:"last_report,omitempty"`
}

// ServiceOverview is what belongs to no queue.
type ServiceOverview struct {
	PausedStreams   []string `json:"paused_streams"`   // streams of NATS that took nothing when they were last tried
	PausedTemplates Count    `json:"paused_templates"` // of subscribe messages
	DeadLetters     Count    `json:"dead_letters"`
	Events          Backlog  `json:"events"` // that wait to be published

	MessagesDue   Backlog `json:"messages_due"`
	StuckSending  Count   `json:"stuck_sending"`  // messages without a send left that no stream or receiver has ever had
	StuckSent     Count   `json:"stuck_sent"`     // messages without a send left that the receiver did not confirm
	DeliveriesDue Backlog `json:"deliveries_due"` // of webhooks

	DeliveriesRetrying Count `json:"deliveries_retrying"`
	Delivered          int64 `json:"delivered"`         // counter
	DeliveriesFailed   int64 `json:"deliveries_failed"` // counter
	EndpointsFailing   int   `json:"endpoints_failing"` // to which nothing was delivered since their last failure
	EndpointsDisabled  int   `json:"endpoints_disabled"`
}

// SearchRequest looks for everything that a text may name: GET /api/v1/admin/search.
type SearchRequest struct {
	Query string `json:"q"` // 1..300 characters: an id, phone number, idempotency key, number of a claim, request id or name of a caller
}

// SearchResponse is what was found.
type SearchResponse struct {
	Found       []SearchHit `json:"found"`                  // tasks, messages and others that the caller may read
	PhoneNumber string      `json:"phone_number,omitempty"` // the text is a phone number: list its tasks with this
	Complete    bool        `json:"complete"`               // false: request ids and old claims were not looked for everywhere, as that takes too long
}

// SearchHit is one thing that was found.
type SearchHit struct {
	Kind  string `json:"kind"` // task, message, delivery, subscribe or caller
	ID    string `json:"id"`
	State string `json:"state,omitempty"`
}
