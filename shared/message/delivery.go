package message

import "time"

// DeliveryState is the state of one event's delivery to one endpoint. The numbers are those of
// webhook_deliveries.state.
type DeliveryState int16

// The states of a delivery.
const (
	DeliveryPending   DeliveryState = iota // will be tried (again)
	DeliveryDelivered                      // the endpoint answered 2xx
	DeliveryFailed                         // no try left, or the endpoint is gone
)

// String returns the state's name on the wire.
func (s DeliveryState) String() string { return [...]string{"pending", "delivered", "failed"}[s] }

// ParseDeliveryState parses a name on the wire.
func ParseDeliveryState(word string) (DeliveryState, bool) {
	for s := DeliveryPending; s <= DeliveryFailed; s++ {
		if s.String() == word {
			return s, true
		}
	}
	return 0, false
}

// Answer is the result of one POST to an endpoint.
type Answer struct {
	Status     int           // HTTP status; 0 without a response
	RetryAfter time.Duration // from the receiver; 0 = none
}

// OK reports success: any 2xx, as Standard Webhooks defines.
func (a Answer) OK() bool { return a.Status/100 == 2 }

// Gone reports that the receiver wants no more events: 410, as Standard Webhooks defines.
func (a Answer) Gone() bool { return a.Status == 410 }

// deliveryPauses is the wait after the n-th failure, n >= 1; after the last one the delivery has
// failed.
var deliveryPauses = [...]time.Duration{
	5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour,
}

// maxRetryAfter is the longest Retry-After that is respected.
const maxRetryAfter = 24 * time.Hour

// Delivery is everything that decides the next step of one event's delivery to one endpoint.
type Delivery struct {
	State    DeliveryState
	Attempts int16     // failed tries since the last (re)start of the schedule
	Claims   int32     // fencing number: increased by each try and each resend
	NextAt   time.Time // time of the next try; zero unless pending
}

// Settle applies the result of the try with number claim. An older try counts only if it succeeded,
// since the receiver has the event then. jitter, in [0, 1), spreads retries of tries that failed
// together.
func (d Delivery) Settle(claim int32, a Answer, now time.Time, jitter float64) Delivery {
	switch {
	case d.State == DeliveryDelivered, claim != d.Claims && !a.OK():
		return d
	case a.OK():
		d.State, d.NextAt = DeliveryDelivered, time.Time{}
		return d
	case d.State != DeliveryPending:
		return d
	}
	d.Attempts++
	if a.Gone() || int(d.Attempts) > len(deliveryPauses) {
		d.State, d.NextAt = DeliveryFailed, time.Time{}
		return d
	}
	pause := jittered(deliveryPauses[max(d.Attempts, 1)-1], jitter)
	d.NextAt = now.Add(max(pause, min(a.RetryAfter, maxRetryAfter)))
	return d
}

// Resend restarts the schedule at once from any state. A running try does not count as a try of the
// new schedule.
func (d Delivery) Resend(now time.Time) Delivery {
	d.Claims++
	d.State, d.Attempts, d.NextAt = DeliveryPending, 0, now
	return d
}

// Why an endpoint is disabled; "" while it is enabled.
const (
	DisabledGone    = "gone"    // the endpoint answered 410
	DisabledFailing = "failing" // every try failed for too long
	DisabledByHand  = "by_hand" // by an operator or its caller
)

// Health is the state of an endpoint by its responses.
type Health struct {
	Disabled     string    // the reason; "" = enabled
	FailingSince time.Time // the first failure since the last success; zero = none
}

// After applies the result of one try. An endpoint whose tries have all failed for the time disableAfter is disabled.
func (h Health) After(a Answer, now time.Time, disableAfter time.Duration) Health {
	switch {
	case a.OK():
		h.FailingSince = time.Time{}
		return h
	case h.FailingSince.IsZero():
		h.FailingSince = now
	}
	switch {
	case h.Disabled != "":
	case a.Gone():
		h.Disabled = DisabledGone
	case now.Sub(h.FailingSince) >= disableAfter:
		h.Disabled = DisabledFailing
	}
	return h
}
