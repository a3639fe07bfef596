package intake

import (
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
)

// save commits a message and returns ack saved. A message with Refused set is not stored: save returns the result of
// an earlier request, or the refusal.
func (in *Intake) save(m *messages.Submission) (Submitted, error) {
	queued := time.Now()
	results, errs := in.env.Messages.Submit([]*messages.Submission{m})
	in.env.Metrics().TwoPhase.DBQueue.Observe(time.Since(queued))
	if errs[0] != nil {
		return Submitted{}, errs[0]
	}
	result := results[0]
	if result.Refused != nil {
		return Submitted{}, result.Refused
	}
	if result.State == message.Sending.String() { // also for a repeat: the first call may have been killed before its wake-up
		in.env.WakeForMessage(m.To.Kind)
	}
	return Submitted{
		Ack: api.MessageAck{
			ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, Ack: api.AckSaved,
			Status: int(result.Status), State: result.State, Archived: result.Archived,
		},
		SavedAt: result.SavedAt, Replayed: result.Replayed,
	}, nil
}
