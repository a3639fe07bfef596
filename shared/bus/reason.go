package bus

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// PublicReason explains to a submitter why Publish failed with err. Unlike err, the explanation contains no
// details of the NATS setup.
func PublicReason(err error) string {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, ErrRefused):
		switch {
		case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
			return "the message is larger than the broker accepts"
		case errors.As(err, &api), errors.Is(err, nats.ErrBadSubject):
			return "the broker rejected this message"
		}
		return err.Error() // a text of this package, with the subject, or of the CloudEvents library
	case errors.Is(err, ErrSubjectUnavailable):
		return "too many messages to this receiver are stored: the message is published when there is room"
	case errors.Is(err, ErrStreamUnavailable):
		return "the broker is full, or cannot store messages of this kind now: they are published when it can store them"
	}
	return "the broker is unreachable: messages are published when it can be reached again"
}
