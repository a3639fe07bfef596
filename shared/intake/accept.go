package intake

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

// accept publishes the message to the stream of accepted messages, which keeps at most one message
// for each id, and returns ack accepted. After bus.ErrUnavailable, the stream may have the message
// nevertheless.
func (in *Intake) accept(ctx context.Context, m *messages.Submission) (Submitted, error) {
	hostname, _ := os.Hostname() // "" if it is not known
	m.AcceptedAt, m.Producer = time.Now().UTC(), hostname
	event, err := streamevent.OfAccepted(m)
	if err != nil {
		return Submitted{}, err
	}
	metrics := in.env.Metrics().TwoPhase
	durability, err := in.durability()
	if err != nil {
		metrics.PublishFail.Inc()
		return Submitted{}, err
	}
	started := time.Now()
	stored, err := in.env.Bus().Accept(ctx, bus.Acceptance{
		Subject: bus.AcceptSubject(m.From, m.ID.String()), Fingerprint: streamevent.FingerprintText(m.Fingerprint), Event: event,
	})
	if err != nil {
		metrics.PublishFail.Inc()
		return Submitted{}, err
	}
	metrics.AcceptedWrite.Observe(time.Since(started))
	metrics.AcceptedAck.Observe(time.Since(m.AcceptedAt))
	if stored.Replayed {
		return replayResult(m, durability, stored.Seq, stored.Event.Time(), stored.Fingerprint)
	}
	return acceptedResult(m, durability, stored.Seq, m.AcceptedAt), nil
}

// replayResult returns the result for a message whose id the stream has since the time at. If the stream has
// another message with this id (fingerprint differs), replayResult returns a refusal.
func replayResult(m *messages.Submission, durability bus.Durability, seq uint64, at time.Time, fingerprint string) (Submitted, error) {
	if fingerprint != streamevent.FingerprintText(m.Fingerprint) {
		return Submitted{}, task.Refuse(task.CodeKeyReused, "this client_msg_id was used with another message; use a new one for a new message")
	}
	result := acceptedResult(m, durability, seq, at)
	result.Replayed = true
	return result, nil
}

func acceptedResult(m *messages.Submission, durability bus.Durability, seq uint64, at time.Time) Submitted {
	return Submitted{Ack: api.MessageAck{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: api.AckAccepted, State: api.AckAccepted,
		Durability: durability.String(), AcceptedAt: fn.Instant(at), AcceptSeq: int64(seq),
	}}
}

// resultOfRefused returns the result for a message with Refused set: as for any repeat if the message
// was accepted or saved before, otherwise the refusal.
func (in *Intake) resultOfRefused(ctx context.Context, c *fn.Call, m *messages.Submission) (Submitted, error) {
	accepted, err := in.env.Bus().LookUp(ctx, m.ID.String())
	switch {
	case err != nil:
		c.Log("not_looked_up", err.Error())
		return Submitted{}, errBusy()
	case accepted == nil:
		return in.save(m)
	}
	durability, err := in.durability()
	if err != nil {
		return Submitted{}, errBusy()
	}
	return replayResult(m, durability, accepted.Seq, accepted.Event.Time(), accepted.Fingerprint)
}

// durability returns the failures that an accepted message is known to survive before it is saved.
// If that is less than the settings require, the error is a bus.ErrUnavailable, and no message may be accepted.
func (in *Intake) durability() (bus.Durability, error) {
	known, _ := in.knownDurability.Get() // after an error, known is the part that could be verified
	required := in.twoPhase.Durability | bus.DurableProcess
	if !known.Covers(required) {
		return known, fmt.Errorf("%w: the stream has the durability %s, and %s is required", bus.ErrUnavailable, known, required)
	}
	return known, nil
}

func errBusy() error {
	return task.Busy("messages cannot be accepted now; repeat the same call later")
}
