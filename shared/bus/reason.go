package bus

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Reason explains to a submitter why a message was not published, without details of the NATS setup.
// The error itself is for the log.
func Reason(err error) string {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, ErrRefused):
		switch {
		case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
			return "the message is larger than the broker takes"
		case errors.As(err, &api), errors.Is(err, nats.ErrBadSubject):
			return "the broker does not take this message"
		}
		return err.Error() // written in this package
	case errors.Is(err, ErrSubjectUnavailable):
		return "this receiver takes no more messages for now"
	case errors.Is(err, ErrStreamUnavailable):
		return "the broker has no room for messages of this kind now, or cannot store them: they are published as soon as it can"
	}
	return "the broker cannot be reached: messages are published as soon as it can"
}
