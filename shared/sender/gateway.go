package sender

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// Gateway hands messages to whatever carries them.
//
// Send is called by many goroutines at once. It tries once, and returns soon
// after ctx ends: with what it knows, or with Unknown. It must not keep trying
// afterwards. Package gatewaytest holds a Gateway to this.
type Gateway interface {
	Send(ctx context.Context, m Message) Result
}

// GatewayFunc makes a function a Gateway.
type GatewayFunc func(ctx context.Context, m Message) Result

// Send calls f.
func (f GatewayFunc) Send(ctx context.Context, m Message) Result { return f(ctx, m) }

// Message is one attempt to send one task.
type Message struct {
	TaskID      string // the same in each attempt
	ClaimID     int64  // another one in each attempt at this task; tasks claimed together share it
	PhoneNumber string
	Content     string
	RetryCount  int // attempts that were used up before this one
}

func messageOf(t api.ClaimedTask) Message {
	return Message{TaskID: t.TaskID, ClaimID: int64(t.ClaimID), PhoneNumber: t.PhoneNumber, Content: t.Content, RetryCount: t.RetryCount}
}

// Outcome is what became of an attempt.
type Outcome int

// The outcomes. The zero value is the one that is always true.
const (
	Unknown   Outcome = iota // the message may have left; the task's on_unknown decides
	OK                       // the provider has it
	Failed                   // it was not sent and never will be
	Retryable                // it was not sent; another attempt may help, as long as retries are left
	Released                 // it was not tried: no retry is used
)

var outcomeWords = []string{"unknown", "ok", "failed", "retryable", "released"}

// String is the outcome's word.
func (o Outcome) String() string { return outcomeWords[o] }

// ParseOutcome reads an outcome's word.
func ParseOutcome(word string) (Outcome, bool) {
	i := slices.Index(outcomeWords, word)
	return Outcome(max(i, 0)), i >= 0
}

// Result is what a Gateway says of an attempt. All but the Outcome may be left
// out.
type Result struct {
	Outcome Outcome
	Code    string // the provider's word for a failure, cut at 50 characters
	Message string // for people, kept with the task, cut at 500 characters

	// RetryAfter is how long a Released task stays away, at most a week. It also
	// holds up the next sends of this process, at most for a minute: what a
	// provider says that has had enough.
	RetryAfter time.Duration
}
