package message

import "time"

// DeliveryState is where the telling of one event to one endpoint is. The
// numbers are those of webhook_deliveries.state.
type DeliveryState int16

// The states of a delivery.
const (
	DeliveryPending   DeliveryState = iota // will be tried (again)
	DeliveryDelivered                      // the endpoint answered 2xx
	DeliveryFailed                         // the schedule is used up, or the receiver is gone
)

// String is the state's word on the wire.
func (s DeliveryState) String() string { return [...]string{"pending", "delivered", "failed"}[s] }

// ParseDeliveryState reads a word of the wire.
func ParseDeliveryState(word string) (DeliveryState, bool) {
	for s := DeliveryPending; s <= DeliveryFailed; s++ {
		if s.String() == word {
			return s, true
		}
	}
	return 0, false
}

// Answer is what came of one POST to an endpoint.
type Answer struct {
	Status     int           // of HTTP; 0 when there was no answer
	RetryAfter time.Duration // what the receiver asked for; 0 = nothing
}

// OK tells whether the receiver has it: any 2xx, as Standard Webhooks says.
func (a Answer) OK() bool { return a.Status/100 == 2 }

// Gone tells whether the receiver wants nothing more: 410, as Standard Webhooks
// says.
func (a Answer) Gone() bool { return a.Status == 410 }

// pausesOfDeliveries is how long a delivery waits after its n-th failure, n >= 1;
// after the last of them it has failed.
var pausesOfDeliveries = [...]time.Duration{
	5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour,
}

// maxRetryAfter bounds what a receiver may ask for.
const maxRetryAfter = 24 * time.Hour

// Delivery is everything that decides the next step of telling one event to one
// endpoint.
type Delivery struct {
	State    DeliveryState
	Attempts int16     // failures of this schedule
	Claims   int32     // the fence: one more with each try begun and each resend
	NextAt   time.Time // when it is to be tried (again); zero unless pending
}

// Settle decides what the try that was begun as number claim changes. That of an
// older one counts only when it was a success: the receiver has the event then.
// jitter, in [0, 1), spreads what failed together.
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
	if a.Gone() || int(d.Attempts) > len(pausesOfDeliveries) {
		d.State, d.NextAt = DeliveryFailed, time.Time{}
		return d
	}
	pause := jittered(pausesOfDeliveries[d.Attempts-1], jitter)
	d.NextAt = now.Add(max(pause, min(a.RetryAfter, maxRetryAfter)))
	return d
}

// Resend begins the schedule anew, at once, whatever became of the one before: a
// try of that which is under way does not count for this one.
func (d Delivery) Resend(now time.Time) Delivery {
	d.Claims++
	d.State, d.Attempts, d.NextAt = DeliveryPending, 0, now
	return d
}

// Why an endpoint is disabled; "" while it is enabled.
const (
	DisabledGone    = "gone"    // it answered 410
	DisabledFailing = "failing" // nothing was delivered for too long
	DisabledByHand  = "by_hand"
)

// Health is what an endpoint's answers made of it.
type Health struct {
	Disabled     string    // why; "" = enabled
	FailingSince time.Time // the first failure since the last success; zero = none
}

// After takes in the answer to one try. An endpoint that answered nothing but
// failures for patience is disabled.
func (h Health) After(a Answer, now time.Time, patience time.Duration) Health {
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
	case now.Sub(h.FailingSince) >= patience:
		h.Disabled = DisabledFailing
	}
	return h
}
