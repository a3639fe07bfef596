package trigger

import "time"

// Config is how the trigger calls functions. A zero field that has a default means this default.
type Config struct {
	BaseURL      string // events are posted to {BaseURL}/events/{function}; BaseURL may itself contain "{function}"
	User         string // name of a caller with the role trigger, for HTTP Basic authentication
	Password     string
	Concurrency  int           // POSTs of this trigger at the same time, over all routes; default 64
	Timeout      time.Duration // of one POST, unless the route has its own; default 1 minute
	MinBackoff   time.Duration // before the second delivery, then doubled; default 1 s
	MaxBackoff   time.Duration // upper limit of the doubled backoff, to which up to a quarter of jitter is added; default 5 minutes
	DrainTimeout time.Duration // how long POSTs may go on after the context of Run has ended; default 25 s

	// OnDelivery is called after each POST, concurrently; may be nil. status is 0 without a response. took is the time until
	// the response was read, or the POST failed.
	OnDelivery func(durable, function string, status int, took time.Duration)
}
