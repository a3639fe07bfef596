package sender

import (
	"context"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// Gateway sends messages through a provider.
//
// Send must be safe for concurrent use. It tries once. After ctx has ended, it returns within 5 s: with the outcome if
// the outcome is certain, else with Unknown. Nothing may continue after Send has returned. Package gatewaytest tests
// these rules.
type Gateway interface {
	Send(ctx context.Context, m Message) Result
}

// GatewayFunc is a function as a Gateway.
type GatewayFunc func(ctx context.Context, m Message) Result

// Send calls f.
func (f GatewayFunc) Send(ctx context.Context, m Message) Result { return f(ctx, m) }

// Message is one attempt to send one task.
type Message struct {
	TaskID      string // the same in each attempt
	ClaimID     int64  // different in each attempt at a task; tasks claimed together have the same ClaimID
	PhoneNumber string
	Content     string
	RetryCount  int // retries used before this attempt
}

func messageOf(t api.ClaimedTask) Message {
	return Message{TaskID: t.TaskID, ClaimID: int64(t.ClaimID), PhoneNumber: t.PhoneNumber, Content: t.Content, RetryCount: t.RetryCount}
}

// Outcome is the outcome of an attempt.
type Outcome int

// The outcomes. Unknown is the zero value because it asserts nothing: the message may have been sent or not.
const (
	Unknown   Outcome = iota // the message may have been sent; the task's on_unknown decides
	OK                       // the provider accepted the message
	Failed                   // the message was not sent, and a retry would not help
	Retryable                // the message was not sent; another attempt is made if a retry is left
	Released                 // the message was not sent, and no retry is used up
)

var outcomeNames = []string{"unknown", "ok", "failed", "retryable", "released"}

// String returns the name of the outcome, such as "retryable". A value that is not in the list is reported as unknown.
func (o Outcome) String() string {
	if o < 0 || int(o) >= len(outcomeNames) {
		return outcomeNames[Unknown]
	}
	return outcomeNames[o]
}

// ParseOutcome reads the name of an outcome.
func ParseOutcome(name string) (Outcome, bool) {
	i := slices.Index(outcomeNames, name)
	return Outcome(max(i, 0)), i >= 0
}

// Result is the result of an attempt. All fields except Outcome are optional.
type Result struct {
	Outcome Outcome
	Code    string // the provider's error code, truncated to 50 characters
	Message string // for people, stored with the task, truncated to 500 characters

	// RetryAfter is the time until a Released task can be claimed again, at most a week. Because the provider may be
	// overloaded, it also delays this sender's next sends by at most a minute, except those that already wait for their
	// turn.
	RetryAfter time.Duration
}

func notSent(why error) Result {
	return Result{Outcome: Released, Message: "not sent: " + why.Error()}
}
