package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	// ErrRefused means that publishing the same message again would not help: for example, its subject is invalid, no stream
	// has the subject, the message is too large, or it is not a valid event.
	ErrRefused = errors.New("the broker refused the message")
	// ErrUnavailable means that the broker did not reply or could not store the message now. The broker may
	// have stored it nevertheless, so publish the message again with the same MsgID.
	ErrUnavailable = errors.New("the broker is unavailable")
	// ErrOldServer is an ErrUnavailable: on this server every function could delete accepted messages that are
	// not saved yet (see strictRequests).
	ErrOldServer = fmt.Errorf("%w: messages are accepted before they are saved only with nats-server %s or later", ErrUnavailable, strictRequests)
	// ErrStreamUnavailable is an ErrUnavailable of one stream: for example, the stream is full, has no leader, is missing,
	// or this user of NATS may not publish to it.
	ErrStreamUnavailable = fmt.Errorf("%w for one stream", ErrUnavailable)
	// ErrSubjectUnavailable is an ErrUnavailable of one subject, which has reached its own limit in the stream.
	ErrSubjectUnavailable = fmt.Errorf("%w for one subject", ErrUnavailable)
)

var errDenied = errors.New("the permissions of this NATS user do not include the subject")

// Message is an event for a subject.
type Message struct {
	Subject string
	MsgID   string // by which the stream deduplicates; "" = the event's id
	Event   cloudevents.Event
}

// publishTimeout bounds a Publish whose context has no deadline.
const publishTimeout = 5 * time.Second

// Publish publishes all messages and waits for the replies until ctx ends, or for 5 s if ctx has no deadline. It
// returns one error per message, in the order of messages: nil if the stream has stored the message (now or earlier),
// ErrRefused, ErrSubjectUnavailable, ErrStreamUnavailable or ErrUnavailable. A refused message does not delay other
// messages.
//
// Messages to one stream are stored in their order. If the connection is lost, Publish does not send the
// remaining messages, not even over the next connection. A later message may be stored without an earlier message if
// the earlier message is refused or its subject is at its limit, if a full stream gets room meanwhile, or if another
// server of a cluster becomes leader of the stream.
func (b *Bus) Publish(ctx context.Context, messages []Message) []error {
	if len(messages) == 0 {
		return nil
	}
	conn, err := b.connection(ctx)
	if err != nil {
		return slices.Repeat([]error{unavailable(err)}, len(messages))
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishTimeout)
		defer cancel()
	}
	publisher, err := conn.newPublisher(len(messages))
	if err != nil {
		return slices.Repeat([]error{unavailable(err)}, len(messages))
	}
	defer publisher.CleanupPublisher()
	futures, errs := b.sendAll(conn, publisher, messages)
	waitCtx, cancel := reserveLookUpTime(ctx)
	defer cancel()
	noReply, replied := map[int]error{}, false // errors by index of the message; whether NATS replied to any request
	for i, f := range futures {
		if f == nil { // not sent
			continue
		}
		err := b.awaitAck(waitCtx, f, messages[i].Subject)
		if isNoReply(err) {
			noReply[i] = err
			continue
		}
		errs[i] = classify(err)
		if errors.Is(err, errDenied) {
			errs[i] = b.deniedError(messages[i].Subject)
		}
		replied = replied || !errors.Is(errs[i], ErrUnavailable) || errors.Is(errs[i], ErrStreamUnavailable)
	}
	byStream := map[string]error{} // one look-up for all messages of a stream
	for _, i := range slices.Sorted(maps.Keys(noReply)) {
		subject := messages[i].Subject
		stream := cmp.Or(b.streamOf(subject), subject)
		if byStream[stream] == nil {
			byStream[stream] = b.classifyNoReply(ctx, conn, subject, noReply[i], replied)
			replied = replied || errors.Is(byStream[stream], ErrRefused) || errors.Is(byStream[stream], ErrStreamUnavailable)
		}
		errs[i] = byStream[stream]
	}
	return errs
}

// reserveLookUpTime keeps a quarter of the remaining time for looking up the subjects of messages without
// a reply.
func reserveLookUpTime(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	return context.WithDeadline(ctx, end.Add(-time.Until(end)/4))
}

// newPublisher returns a publisher for n messages over this connection. Each Publish has its own publisher,
// because a message that is never acknowledged, such as a denied message, stays pending. The caller must call
// CleanupPublisher.
func (conn *Connection) newPublisher(n int) (jetstream.JetStream, error) {
	return jetstream.New(conn.nats(), jetstream.WithPublishAsyncMaxPending(n))
}

// sendAll sends the messages in order over this connection only. If a message cannot be sent now, sendAll does
// not send the messages after it. A refused message, or a message to a subject that NATS has denied before, is
// only skipped.
func (b *Bus) sendAll(conn *Connection, publisher jetstream.JetStream, messages []Message) ([]jetstream.PubAckFuture, []error) {
	futures, errs := make([]jetstream.PubAckFuture, len(messages)), make([]error, len(messages))
	for i := range messages {
		denied, _ := b.denied.contains(messages[i].Subject)
		switch {
		case conn.ctx.Err() != nil:
			errs[i] = unavailable(ErrNotConnected)
		case denied:
			errs[i] = b.deniedError(messages[i].Subject)
			continue // whatever the error: the subject of the next message may be permitted
		default:
			futures[i], errs[i] = b.publish(publisher, &messages[i])
		}
		if errors.Is(errs[i], ErrUnavailable) {
			for j := i + 1; j < len(messages); j++ {
				errs[j] = errs[i]
			}
			break
		}
	}
	return futures, errs
}

// deniedError returns the error for a denied subject. For one of our own streams the permissions are
// wrong, not the message.
func (b *Bus) deniedError(subject string) error {
	if b.streamOf(subject) == "" {
		return refused(fmt.Errorf("no stream has the subject %s, or the broker does not permit it", subject))
	}
	return streamUnavailable(fmt.Errorf("%w: %s", errDenied, subject))
}

// publish publishes one message. If one of our streams has the subject, no other stream may store the message: a foreign stream
// with this subject would acknowledge the message, and nothing would read it there.
func (b *Bus) publish(publisher jetstream.JetStream, m *Message) (jetstream.PubAckFuture, error) {
	if !publishable(m.Subject) {
		return nil, refused(fmt.Errorf("%.100q is not a subject to publish to", m.Subject))
	}
	header, err := encodeHeaders(m.Event)
	if err != nil {
		return nil, refused(err)
	}
	options := []jetstream.PublishOpt{jetstream.WithMsgID(cmp.Or(m.MsgID, m.Event.ID())), jetstream.WithRetryAttempts(0)}
	if stream := b.streamOf(m.Subject); stream != "" {
		options = append(options, jetstream.WithExpectStream(stream))
		b.rooms.count(stream, len(m.Event.Data())+headerBytes)
	}
	f, err := publisher.PublishMsgAsync(&nats.Msg{Subject: m.Subject, Header: header, Data: m.Event.Data()}, options...)
	return f, classify(err)
}

func (b *Bus) awaitAck(ctx context.Context, f jetstream.PubAckFuture, subject string) error {
	for {
		denied, changed := b.denied.contains(subject)
		if denied {
			return fmt.Errorf("%w: %s", errDenied, subject)
		}
		select {
		case <-f.Ok():
			return nil
		case err := <-f.Err():
			return err
		case <-changed:
			continue
		case <-ctx.Done():
		}
		select {
		case <-f.Ok(): // acknowledged while we waited for another message
			return nil
		default:
			return ctx.Err()
		}
	}
}

// isNoReply reports whether no stream replied: the subject has no subscriber, no reply arrived in time, or
// the reply is not an acknowledgement.
func isNoReply(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrAsyncPublishTimeout) || errors.Is(err, jetstream.ErrInvalidJSAck)
}

// classifyNoReply returns the error for a message without a reply, after it has looked up the stream of the subject:
// ErrStreamUnavailable if a stream has the subject or one of ours should have it, else ErrRefused. If the look-up fails, it
// returns ErrStreamUnavailable if NATS replied to another request (replied), else ErrUnavailable.
func (b *Bus) classifyNoReply(ctx context.Context, conn *Connection, subject string, cause error, replied bool) error {
	_, err := conn.js.StreamNameBySubject(ctx, subject)
	switch {
	case err == nil:
		return streamUnavailable(cause)
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		err = fmt.Errorf("%w; look up %s: %w", cause, subject, err)
		if replied {
			return streamUnavailable(err)
		}
		return unavailable(err)
	case b.streamOf(subject) != "":
		return streamUnavailable(errStreamMissing(b.streamOf(subject)))
	}
	return refused(fmt.Errorf("no stream has the subject %s", subject))
}

func classify(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject),
		errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return refused(err)
	case api != nil && strings.Contains(api.Description, perSubjectText):
		return fmt.Errorf("%w: %w", ErrSubjectUnavailable, err)
	case api != nil:
		return streamUnavailable(err)
	}
	return unavailable(err)
}

// perSubjectText is in the server's error text if one subject has reached its limit. A full stream has the
// same error code.
const perSubjectText = "per subject"

func refused(err error) error { return fmt.Errorf("%w: %w", ErrRefused, err) }

func unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

func streamUnavailable(err error) error { return fmt.Errorf("%w: %w", ErrStreamUnavailable, err) }
