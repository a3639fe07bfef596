package message

import "time"

// DeliveryState is the state of the delivery of one event to one endpoint. The database stores the
// numbers in webhook_deliveries.state.
type DeliveryState int16

const (
	DeliveryPending   DeliveryState = iota // an attempt is scheduled or running
	DeliveryDelivered                      // the endpoint returned 2xx and, if it is a robot of a chat group, reported no error in the body
	DeliveryFailed                         // all attempts failed, or the endpoint is gone
)

// String returns the name of the state in the API.
func (s DeliveryState) String() string { return [...]string{"pending", "delivered", "failed"}[s] }

// ParseDeliveryState is the inverse of String. ok is false for an unknown name.
func ParseDeliveryState(name string) (s DeliveryState, ok bool) {
	for s = DeliveryPending; s <= DeliveryFailed; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// PostResult is the result of one POST to a webhook endpoint.
type PostResult struct {
	Status     int           // HTTP status; 0 if there was no response
	RetryAfter time.Duration // of the response; 0 = none
	Refused    bool          // the body says that the event was refused: the robots of chat groups return this with status 200
}

// OK reports whether the endpoint accepted the event: Standard Webhooks defines any 2xx as success.
func (r PostResult) OK() bool { return r.Status/100 == 2 && !r.Refused }

// gone reports whether the endpoint no longer wants any events: Standard Webhooks defines 410 for this.
func (r PostResult) gone() bool { return r.Status == 410 }

// deliveryRetryDelays[n-1] is the wait after the n-th failed attempt. The delivery has failed when the attempt after the
// last wait fails.
var deliveryRetryDelays = [...]time.Duration{
	5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour,
}

const maxRetryAfter = 24 * time.Hour // longer Retry-After values are shortened to this

// Delivery is the retry state of the delivery of one event to one endpoint.
type Delivery struct {
	State    DeliveryState
	Attempts int16     // failed attempts since the last (re)start of the schedule
	Claims   int32     // fencing number: each attempt and each resend increases it
	NextAt   time.Time // time of the next attempt; zero unless pending
}

// Settle returns the delivery after the result of the attempt with the fencing number claim. A failure counts only if no
// later attempt or resend has started and the delivery is still pending. A success always counts, because then the endpoint
// has the event. jitter, in [0, 1), spreads the retries of attempts that failed at the same time.
func (d Delivery) Settle(claim int32, r PostResult, now time.Time, jitter float64) Delivery {
	if r.OK() {
		d.State, d.NextAt = DeliveryDelivered, time.Time{}
		return d
	}
	if d.State != DeliveryPending || claim != d.Claims {
		return d
	}
	d.Attempts++
	if r.gone() || int(d.Attempts) > len(deliveryRetryDelays) {
		d.State, d.NextAt = DeliveryFailed, time.Time{}
		return d
	}
	pause := jittered(deliveryRetryDelays[max(d.Attempts, 1)-1], jitter)
	d.NextAt = now.Add(max(pause, min(r.RetryAfter, maxRetryAfter)))
	return d
}

// Resend makes the delivery due at once and restarts its retry schedule, from any state. The failure of
// an attempt that is still running does not count in the new schedule.
func (d Delivery) Resend(now time.Time) Delivery {
	d.Claims++
	d.State, d.Attempts, d.NextAt = DeliveryPending, 0, now
	return d
}

const (
	DisabledGone     = "gone"    // the endpoint returned 410
	DisabledFailing  = "failing" // every attempt failed for the configured time
	DisabledManually = "by_hand" // an admin or the caller of the endpoint disabled it
)

// EndpointHealth is whether an endpoint is failing or disabled.
type EndpointHealth struct {
	DisabledReason string    // "" = enabled
	FailingSince   time.Time // the first failure after the last success; zero = not failing
}

// AfterAttempt returns the health after the result of one attempt. It disables an endpoint that is gone, or whose
// attempts have all failed for the time disableAfter.
func (h EndpointHealth) AfterAttempt(r PostResult, now time.Time, disableAfter time.Duration) EndpointHealth {
	if r.OK() {
		h.FailingSince = time.Time{}
		return h
	}
	if h.FailingSince.IsZero() {
		h.FailingSince = now
	}
	switch {
	case h.DisabledReason != "":
	case r.gone():
		h.DisabledReason = DisabledGone
	case now.Sub(h.FailingSince) >= disableAfter:
		h.DisabledReason = DisabledFailing
	}
	return h
}
