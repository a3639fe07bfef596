package message

import (
	"errors"
	"fmt"
	"time"
)

// Status is the progress of a message, with the numbers of the original message table. It never
// decreases.
type Status int16

// The statuses (in the original message table 发送中, 已发送, 已接收).
const (
	Sending  Status = iota // neither the broker nor a receiver is known to have the message
	Sent                   // stored in a stream, accepted by the receiver at its URL, or confirmed by some of the expected consumers
	Received               // confirmed by all expected consumers
)

// Limits of the contract.
const (
	MaxData             = 64 << 10 // bytes of the data
	MaxNumberChars      = 300      // characters of a number in the data
	MaxSends            = 20       // highest max_sends
	DefaultSends        = 5
	MaxExpectedReceipts = 100
	MaxError            = 500 // characters of LastError
)

// Message has the fields of a message that decide its next step. A zero time means none.
type Message struct {
	Kind             Kind
	Confirm          bool  // confirmations finish the message, not a successful send
	MaxSends         int16 // per epoch
	ExpectedReceipts int16 // distinct consumers that must confirm; 1 without Confirm

	Status      Status
	Abandoned   bool      // given up by an operator
	Remaining   int16     // sends left in this epoch
	SendNo      int16     // sends used in this epoch
	Epoch       int32     // starts at 1, increased by each redrive
	NextAt      time.Time // of the next send; during a POST, the end of its lease
	LastError   string    // why the last send failed; "" after a success
	DeliveredAt time.Time // when the broker, or the receiver at the URL, first had the message
	FinishedBy  string    // the consumer with the last needed confirmation, or the operator who abandoned it
}

// State returns the name of the state in the API: sending, sent, received, abandoned.
func (m Message) State() string {
	if m.Abandoned {
		return "abandoned"
	}
	return m.Status.String()
}

// String returns the name of the status in the API.
func (s Status) String() string { return [...]string{"sending", "sent", "received"}[s] }

// ParseStatus is the inverse of String.
func ParseStatus(name string) (Status, bool) {
	for s := Sending; s <= Received; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// Final reports whether the message is finished or abandoned: it is not sent again automatically.
func (m Message) Final() bool {
	return m.Abandoned || m.Status == Received || m.Status == Sent && !m.Confirm
}

// Stuck reports whether the message waits for an operator.
func (m Message) Stuck() bool { return !m.Final() && m.Remaining == 0 }

// MsgID returns the id by which the broker deduplicates the next send: <id>.<first 8 hex digits of the
// fingerprint>.<epoch>.<send>. The fingerprint distinguishes the message from another one with the same id that was
// published but never saved.
func (m Message) MsgID(id string, fingerprint [16]byte) string {
	return fmt.Sprintf("%s.%x.%d.%d", id, fingerprint[:4], m.Epoch, m.SendNo+1)
}

// Outcome is the outcome of one send.
type Outcome int8

const (
	Accepted    Outcome = iota // the broker has stored the message, now or earlier, or the URL returned 2xx
	Refused                    // the broker refused the message, or the POST failed, also if there was no response
	Unavailable                // the broker did not respond or was temporarily unavailable, or this process cancelled the POST
)

// Scope is the extent of an Unavailable result.
type Scope int8

const (
	OneMessage Scope = iota // this message or its subject; others are not affected
	OneStream               // all messages to one stream; other streams are not affected
	AllStreams              // the broker itself
)

// Result is the result of one send.
type Result struct {
	Outcome Outcome
	Reason  string // of Refused and Unavailable, for an operator
	Scope   Scope  // of Unavailable

	RetryAfter time.Duration // least pause before the next send: Retry-After of a URL's receiver, or UnavailablePause; 0 = none
}

// The shortest and longest pause after an Unavailable result.
const (
	minUnavailablePause = 2 * time.Second
	maxUnavailablePause = time.Minute
)

// StreamPause returns the pause of a stream after consecutive failures: 2 s, then doubled, up to a minute.
func StreamPause(failures int) time.Duration {
	pause := minUnavailablePause
	for ; failures > 1 && pause < maxUnavailablePause; failures-- {
		pause *= 2
	}
	return min(pause, maxUnavailablePause)
}

// UnavailablePause returns the pause of a message or event after an Unavailable result with scope OneMessage: as long
// as its age, but at least 2 s and at most a minute.
func UnavailablePause(age time.Duration) time.Duration {
	return min(max(age, minUnavailablePause), maxUnavailablePause)
}

// maxPause is the longest pause between two sends of an epoch, without jitter. maxSchedule of package inbox includes it.
const maxPause = time.Hour

// pauseAfter returns the pause after the n-th send of an epoch, n >= 1. It is the same whether the send was accepted and
// waits for its confirmation, or was refused.
func pauseAfter(n int16) time.Duration {
	pauses := [...]time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, maxPause}
	return pauses[min(max(int(n), 1), len(pauses))-1]
}

// jittered returns d changed by up to 20 % either way; jitter is in [0, 1).
func jittered(d time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*jitter))
}

// Settle applies the result of one send. jitter, in [0, 1), spreads the next sends of messages that
// were sent together. If the stream or the broker is unavailable, the message does not change: the
// stream pauses as a whole, and the message keeps its place in the order.
func (m Message) Settle(r Result, now time.Time, jitter float64) Message {
	if r.Outcome == Unavailable && r.Scope != OneMessage {
		return m
	}
	m.LastError = r.Reason
	if r.Outcome == Unavailable {
		// Without jitter, so that waiting messages keep their order.
		m.NextAt = now.Add(min(max(r.RetryAfter, minUnavailablePause), maxUnavailablePause))
		return m
	}
	m.SendNo++
	m.Remaining--
	if r.Outcome == Accepted {
		m.LastError = ""
		m = m.delivered(now)
		m.Status = max(m.Status, m.acceptedStatus())
	}
	m.NextAt = time.Time{}
	if m.Remaining > 0 && !m.Final() {
		m.NextAt = now.Add(max(jittered(pauseAfter(m.SendNo), jitter), min(r.RetryAfter, maxPause)))
	}
	return m
}

// SettlePost is Settle for a POST that ran without a row lock; before is the message when the POST started. If the
// message has changed since, only an Accepted result counts: the receiver has the message then.
func (m Message) SettlePost(before Message, r Result, now time.Time, jitter float64) Message {
	switch {
	case !m.Final() && m.Epoch == before.Epoch && m.SendNo == before.SendNo && m.NextAt.Equal(before.NextAt):
		return m.Settle(r, now, jitter)
	case r.Outcome != Accepted:
		return m
	case m.acceptedStatus() == Received:
		return m.delivered(now).Receive("", 1)
	}
	m.Status = max(m.Status, Sent)
	return m.delivered(now)
}

func (m Message) delivered(now time.Time) Message {
	if m.DeliveredAt.IsZero() {
		m.DeliveredAt = now
	}
	return m
}

// acceptedStatus returns the status after a successful send. A 2xx of a URL comes from the receiver itself, so it makes
// the message received, unless the message requires confirmation. An acknowledgement of the broker does not come from a
// receiver.
func (m Message) acceptedStatus() Status {
	if m.Kind == URL && !m.Confirm {
		return Received
	}
	return Sent
}

// Receive applies one consumer's confirmation, in any state. receipts is the number of distinct
// consumers that have confirmed, including this one.
func (m Message) Receive(consumer string, receipts int) Message {
	if m.Status == Received {
		return m
	}
	m.Status = max(m.Status, Sent)
	if receipts >= int(m.ExpectedReceipts) {
		m.Status, m.Abandoned, m.NextAt, m.FinishedBy = Received, false, time.Time{}, consumer
	}
	return m
}

// Redrive makes the message due now, with all its sends and new MsgIDs. It refuses a finished message, but not an
// abandoned one.
func (m Message) Redrive(now time.Time) (Message, error) {
	if m.Final() && !m.Abandoned {
		return m, errors.New("the message is " + m.State() + " and has ended; only an abandoned message, or one that has not ended, can be redriven")
	}
	m.Abandoned, m.FinishedBy = false, ""
	m.Epoch++
	m.SendNo, m.Remaining, m.NextAt = 0, m.MaxSends, now
	return m, nil
}

// Abandon ends the sends of a message; by is the name of the operator. An abandoned message is returned unchanged. Abandon
// refuses a finished message.
func (m Message) Abandon(by string) (Message, error) {
	switch {
	case m.Abandoned:
		return m, nil
	case m.Final():
		return m, errors.New("the message is " + m.State() + " and has ended; only a message that has not ended can be abandoned")
	}
	m.Abandoned, m.NextAt, m.FinishedBy = true, time.Time{}, by
	return m, nil
}
