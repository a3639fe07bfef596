package intake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/intake/request"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// MaxBody limits the bytes of a request. It is twice message.MaxData, which leaves room for white space in the data and for
// other fields.
const MaxBody = 2 * message.MaxData

// Request is the body of a request to submit a message.
type Request = request.Message

// newSubmission converts a valid request of a caller. It refuses data that is too long. from is the user or service that the message
// is from; unlike r.From, it is never empty.
func newSubmission(r *Request, caller int64, from string) (*messages.Submission, error) {
	var data bytes.Buffer
	if err := json.Compact(&data, r.Data); err != nil {
		return nil, fmt.Errorf("compact the data: %w", err)
	}
	if data.Len() > message.MaxData {
		return nil, task.Refuse("too_large", fmt.Sprintf("data must have at most %d bytes", message.MaxData))
	}
	fingerprint, err := fingerprintOf(r)
	if err != nil {
		return nil, err
	}
	to, _ := r.Address()
	return &messages.Submission{
		ID: message.ID(caller, from, r.ClientMsgID), CallID: task.NewID(), Fingerprint: fingerprint,
		CallerID: caller, From: from, ClientMsgID: r.ClientMsgID,
		To: to, Exchange: r.ExchangeName, RoutingKey: r.RoutingKey, Type: cmp.Or(r.Type, request.DefaultType), Data: data.Bytes(),
		Confirm: r.NeedsConfirmation(to.Kind), MaxSends: int16(decode.ValueOr(r.MaxSends, message.DefaultSends)),
		ExpectedReceipts: int16(decode.ValueOr(r.ExpectedReceipts, 1)), SentAt: decode.ValueOr(r.SentAt, time.Time{}),
	}, nil
}

// fingerprintOf returns the fingerprint of all fields except from and client_msg_id, which identify the message, and ack,
// which may differ in a repeat.
func fingerprintOf(r *Request) (task.Hash, error) {
	body := *r
	body.From, body.ClientMsgID, body.Ack = "", "", ""
	return task.Fingerprint(&body)
}

// allText returns every string in a JSON value, names of members included, each on its own line.
func allText(data []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var lines []string
	for {
		token, err := decoder.Token()
		if err != nil { // the end: the data is well formed
			return strings.Join(lines, "\n")
		}
		if text, ok := token.(string); ok {
			lines = append(lines, text)
		}
	}
}
