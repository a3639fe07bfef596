package message

import (
	"errors"
	"fmt"
	"time"
)

// Status is how far a message came: the seed's numbers. It only moves forward.
type Status int16

// The statuses (seed 002: 发送中, 已发送, 已接收).
const (
	Sending  Status = iota // no broker and no receiver has taken it yet
	Sent                   // a stream has stored it, or its URL's receiver has it
	Received               // confirmed by all who had to
)

// Limits of the contract.
const (
	MaxData             = 64 << 10 // bytes of the data
	MaxSends            = 20       // highest max_sends
	DefaultSends        = 5
	MaxExpectedReceipts = 100
	MaxError            = 500 // characters of LastError
)

// Message is everything that decides a message's next step. A zero time means
// none.
type Message struct {
	Kind             Kind
	Confirm          bool  // it ends with the confirmations and not with its send
	MaxSends         int16 // in one epoch
	ExpectedReceipts int16 // distinct consumers that have to confirm; 1 without Confirm

	Status      Status
	Abandoned   bool      // given up by hand
	Remaining   int16     // sends left in this epoch
	SendNo      int16     // sends used in this epoch
	Epoch       int32     // 1, and one more with each redrive
	NextAt      time.Time // when it is to be sent (again); zero when it is not
	LastError   string    // why the last send was refused or met nobody; "" after one that was taken
	DeliveredAt time.Time // when the broker, or the URL's receiver, first had it
	FinishedBy  string    // the consumer whose confirmation was the last one needed, or who abandoned it
}

// State is the message's word on the wire: sending, sent, received, abandoned.
func (m Message) State() string {
	if m.Abandoned {
		return "abandoned"
	}
	return m.Status.String()
}

// String is the status's word on the wire.
func (s Status) String() string { return [...]string{"sending", "sent", "received"}[s] }

// ParseStatus reads a word of the wire.
func ParseStatus(word string) (Status, bool) {
	for s := Sending; s <= Received; s++ {
		if s.String() == word {
			return s, true
		}
	}
	return 0, false
}

// Final tells whether nothing more happens to the message by itself.
func (m Message) Final() bool {
	return m.Abandoned || m.Status == Received || m.Status == Sent && !m.Confirm
}

// Stuck tells whether the message waits for an operator.
func (m Message) Stuck() bool { return !m.Final() && m.Remaining == 0 }

// MsgID names the coming send of the message with this id and fingerprint:
// <id>.<fingerprint's first 8 digits>.<epoch>.<send>. It is what a broker
// recognises a repeated publication by; another message under the same id, which
// was published before anybody knew that it cannot be saved, is none.
func (m Message) MsgID(id string, fingerprint [16]byte) string {
	return fmt.Sprintf("%s.%x.%d.%d", id, fingerprint[:4], m.Epoch, m.SendNo+1)
}

// Outcome is what became of one send.
type Outcome int8

// The outcomes of a send.
const (
	Taken   Outcome = iota // the broker stored it, once or before; the URL answered 2xx
	Refused                // the broker or the receiver answered no
	Away                   // nobody answered, or nobody could take anything: no fault of the message
)

// Scope is how much an Away is about.
type Scope int8

// The scopes of an Away.
const (
	OneMessage Scope = iota // this message, or its subject: others go on
	OneStream               // every message to the same stream; other streams go on
	AllStreams              // the broker itself
)

// Result is the outcome of one send.
type Result struct {
	Outcome Outcome
	Reason  string // of Refused and Away, for an operator to read
	Scope   Scope  // of Away

	RetryAfter time.Duration // what the receiver of a URL asked for, which counts up to an hour; 0 = nothing
}

// The shortest and the longest wait for a receiver or a stream that is away.
const (
	awayPause    = 2 * time.Second
	maxAwayPause = time.Minute
)

// StreamPause is how long nothing is published to a stream that has failed so
// often in a row: 2 s, then twice as long each time, up to a minute.
func StreamPause(failures int) time.Duration {
	pause := awayPause
	for ; failures > 1 && pause < maxAwayPause; failures-- {
		pause *= 2
	}
	return min(pause, maxAwayPause)
}

// AwayPause is how long a message that is away by itself (OneMessage) waits when
// it has waited for age already: as long again, within 2 s to a minute.
func AwayPause(age time.Duration) time.Duration {
	return min(max(age, awayPause), maxAwayPause)
}

// longestPause is the longest time between two sends: what a receiver's inbox
// must remember is bounded by it.
const longestPause = time.Hour

// pauseAfter is how long to wait for the confirmation after the n-th send of an
// epoch, n >= 1, or before another try when it was refused.
func pauseAfter(n int16) time.Duration {
	pauses := [...]time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, longestPause}
	return pauses[min(int(n), len(pauses))-1]
}

// jittered is d within 20 % of it either way; jitter is any number in [0, 1).
func jittered(d time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*jitter))
}

// Settle decides what one send changes. jitter, in [0, 1), spreads the next sends
// of messages that were sent together. A message whose stream or broker is away
// does not change: it keeps its place, and the stream waits as a whole.
func (m Message) Settle(r Result, now time.Time, jitter float64) Message {
	if r.Outcome == Away && r.Scope != OneMessage {
		return m
	}
	m.LastError = r.Reason
	if r.Outcome == Away {
		// Without jitter, so that messages that wait keep their order.
		m.NextAt = now.Add(min(max(r.RetryAfter, awayPause), maxAwayPause))
		return m
	}
	m.SendNo++
	m.Remaining--
	if r.Outcome == Taken {
		m.LastError = ""
		m = m.delivered(now)
		m.Status = max(m.Status, m.takenStatus())
	}
	m.NextAt = time.Time{}
	if m.Remaining > 0 && !m.Final() {
		m.NextAt = now.Add(max(jittered(pauseAfter(m.SendNo), jitter), min(r.RetryAfter, longestPause)))
	}
	return m
}

// SettlePost is Settle for a send that was begun when the message was as begun
// and held no lock meanwhile. When something else has settled the message since,
// it counts only if it was taken: the receiver has the message then.
func (m Message) SettlePost(begun Message, r Result, now time.Time, jitter float64) Message {
	switch {
	case !m.Final() && m.Epoch == begun.Epoch && m.SendNo == begun.SendNo && m.NextAt.Equal(begun.NextAt):
		return m.Settle(r, now, jitter)
	case r.Outcome != Taken:
		return m
	case m.takenStatus() == Received:
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

// takenStatus is what a send that was taken means: a URL's 2xx comes from the
// receiver itself, a broker's word only from the broker.
func (m Message) takenStatus() Status {
	if m.Kind == URL && !m.Confirm {
		return Received
	}
	return Sent
}

// Receive takes in the confirmation of one consumer, at whatever time it comes;
// receipts counts the distinct consumers that have confirmed, this one included.
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

// Redrive gives a message all its sends again, at once, under names that no
// broker has seen. It is refused to a message that came to its end.
func (m Message) Redrive(now time.Time) (Message, error) {
	if m.Final() && !m.Abandoned {
		return m, errors.New("the message is " + m.State() + " and at its end; only one that is not can be redriven")
	}
	m.Abandoned, m.FinishedBy = false, ""
	m.Epoch++
	m.SendNo, m.Remaining, m.NextAt = 0, m.MaxSends, now
	return m, nil
}

// Abandon gives a message up by the hand of operator by. A message already
// abandoned stays so without complaint; one that came to its end is refused.
func (m Message) Abandon(by string) (Message, error) {
	switch {
	case m.Abandoned:
		return m, nil
	case m.Final():
		return m, errors.New("the message is " + m.State() + " and at its end; only one that is not can be abandoned")
	}
	m.Abandoned, m.NextAt, m.FinishedBy = true, time.Time{}, by
	return m, nil
}
