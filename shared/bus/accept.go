package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	acceptTimeout   = 2 * time.Second // short: the caller can save the message in Postgres instead
	replicationPoll = 10 * time.Millisecond

	FingerprintHeader = "Fp"                      // the header with Acceptance.Fingerprint
	getMessageAPI     = "$JS.API.STREAM.MSG.GET." // followed by the name of a stream; the leader of the stream replies

	codeStoreFailed = jetstream.ErrorCode(10077) // the subject has its message already, or the stream is full

	acceptSlots = 64 // must not change: the slot is in the subject, so a repeat would be stored again. The number of shards may change
)

// slotOf returns the slot of a sender: 0 to acceptSlots-1.
func slotOf(sender string) int {
	h := fnv.New32a()
	h.Write([]byte(sender))
	return int(h.Sum32() % acceptSlots)
}

// ShardOf returns the shard of a sender: 0 to shards-1, or 0 if shards is 0.
func ShardOf(sender string, shards int) int { return slotOf(sender) % max(shards, 1) }

// AcceptSubject returns the subject of the message with id from a sender. id must be one token: no
// dots, blanks or wildcards.
func AcceptSubject(sender, id string) string { return slotPrefix(slotOf(sender)) + id }

func slotPrefix(slot int) string { return AcceptPrefix + strconv.Itoa(slot) + "." }

// AcceptFilters returns the filter subjects of one shard. shard is from 0 to shards-1.
func AcceptFilters(shard, shards int) (filters []string) {
	if shards == 1 {
		return []string{AcceptPrefix + ">"}
	}
	for slot := shard; slot < acceptSlots; slot += shards {
		filters = append(filters, slotPrefix(slot)+">")
	}
	return filters
}

// AcceptedType is the type of the events in the stream of accepted messages.
const AcceptedType = "sendonce.message.accepted.v1"

// UnreadableType is the type of the event that the trigger posts instead of a stored message that is not an event. Every deployed
// function can make NATS store such messages: if a request names a subject of a stream as its reply subject, the stream stores the reply.
const UnreadableType = "sendonce.unreadable.v1"

// Acceptance is a message for Accept.
type Acceptance struct {
	Subject     string // from AcceptSubject; the stream stores one message per subject, until Forget or RemoveStored removes it
	Fingerprint string // the same in each repeat of a call, and different in another call with the same id
	Event       cloudevents.Event
}

// Accepted is the result of Accept.
type Accepted struct {
	Seq         uint64
	Replayed    bool               // an earlier call stored the message; this call changed nothing
	Fingerprint string             // of the call that stored the message
	Event       *cloudevents.Event // of the earlier call; nil unless Replayed
}

// Accept stores a message unless the stream already has a message for the subject. A nil error means that the
// stream has a message for the subject: this message, or the message of an earlier call (Replayed). If
// Replayed is set, the caller must compare the fingerprints. ErrUnavailable means, for example, that the broker did not
// reply, is too old (ErrOldServer), or that the stream is full; the message may be stored nevertheless, and the
// call may be repeated. ErrRefused means that repeating the call does not help. Accept returns within 2 s.
func (b *Bus) Accept(ctx context.Context, a Acceptance) (Accepted, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	conn, err := b.connection(ctx)
	if err != nil {
		return Accepted{}, unavailable(err)
	}
	if !conn.isStrict {
		return Accepted{}, ErrOldServer
	}
	ctx, unbind := conn.UntilLost(ctx)
	defer unbind()
	ack, err := conn.accept(ctx, a)
	var api *jetstream.APIError
	switch {
	case err == nil:
		return Accepted{Seq: ack.Sequence, Fingerprint: a.Fingerprint}, nil
	case errors.As(err, &api) && api.ErrorCode == codeStoreFailed:
		return b.acceptedEarlier(ctx, conn, a.Subject, api)
	case isNoReply(err):
		return Accepted{}, b.classifyNoReply(ctx, conn, a.Subject, err, false)
	}
	return Accepted{}, classify(err)
}

// accept publishes without a Nats-Msg-Id: the stream refuses a second message with the same subject, however late.
func (conn *Connection) accept(ctx context.Context, a Acceptance) (*jetstream.PubAck, error) {
	if !publishable(a.Subject) || !strings.HasPrefix(a.Subject, AcceptPrefix) {
		return nil, refused(fmt.Errorf("%q is not a subject of accepted messages", a.Subject))
	}
	header, err := encodeHeaders(a.Event)
	if err != nil {
		return nil, refused(err)
	}
	header.Set(FingerprintHeader, a.Fingerprint)
	ctx, cancel := reserveLookUpTime(ctx)
	defer cancel()
	return conn.js.PublishMsg(ctx, &nats.Msg{Subject: a.Subject, Header: header, Data: a.Event.Data()},
		jetstream.WithRetryAttempts(0), jetstream.WithExpectStream(conn.acceptStream))
}

// acceptedEarlier returns the message that an earlier call stored for the subject. It waits while that
// message is being replicated. It returns ErrUnavailable if there is no such message (the stream is full), or if
// the message cannot be read.
func (b *Bus) acceptedEarlier(ctx context.Context, conn *Connection, subject string, cause *jetstream.APIError) (Accepted, error) {
	// A full stream has the same error code: only the text says that the subject has a message. If NATS changed
	// the text, the call would not wait, and would return ErrUnavailable while the message is replicated.
	replicating := strings.Contains(cause.Description, perSubjectText)
	for {
		m, err := b.lastStored(ctx, conn, subject)
		switch {
		case err != nil:
			return Accepted{}, unavailable(fmt.Errorf("%w; get %s: %w", cause, subject, err))
		case m != nil:
			return Accepted{Seq: m.Seq, Replayed: true, Fingerprint: m.Fingerprint, Event: &m.Event}, nil
		case !replicating:
			return Accepted{}, unavailable(cause)
		}
		select {
		case <-time.After(replicationPoll):
		case <-ctx.Done():
			return Accepted{}, unavailable(fmt.Errorf("%w; get %s: %w", cause, subject, ctx.Err()))
		}
	}
}

// AcceptedMessage is a message in the stream of accepted messages.
type AcceptedMessage struct {
	Seq         uint64
	At          time.Time // when it was stored, by the clock of NATS
	Fingerprint string
	Event       cloudevents.Event
}

// LookUp returns the message that was accepted under id, from any sender. It returns nil, nil if no such
// message was accepted or Forget has removed it, ErrUnavailable if that is unknown, and ErrRefused if
// id is invalid. LookUp returns within 2 s, and takes equally long for known and unknown ids.
func (b *Bus) LookUp(ctx context.Context, id string) (*AcceptedMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	conn, err := b.connection(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	if !publishable(id) || strings.Contains(id, ".") {
		return nil, refused(fmt.Errorf("%q is not an id of an accepted message", id))
	}
	ctx, unbind := conn.UntilLost(ctx)
	defer unbind()
	m, err := b.lastStored(ctx, conn, AcceptPrefix+"*."+id)
	if errors.Is(err, ErrNotEvent) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(fmt.Errorf("look up %s: %w", id, err))
	}
	return m, nil
}

// lastStored returns the newest message of a subject; nil, nil if there is none.
func (b *Bus) lastStored(ctx context.Context, conn *Connection, subject string) (*AcceptedMessage, error) {
	return b.readFromLeader(ctx, conn, map[string]any{"last_by_subj": subject})
}

// readFromLeader requests a message; nil, nil if there is none. The request goes to the leader of the
// stream: a replica that lags behind would report an accepted message as missing.
func (b *Bus) readFromLeader(ctx context.Context, conn *Connection, request map[string]any) (*AcceptedMessage, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	response, err := conn.nats().RequestWithContext(ctx, getMessageAPI+b.cfg.acceptStream(), body)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq    uint64    `json:"seq"`
			Time   time.Time `json:"time"`
			Header []byte    `json:"hdrs"`
			Data   []byte    `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(response.Data, &reply); err != nil {
		return nil, err
	}
	switch m := &reply.Message; {
	case reply.Error == nil:
		header, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return nil, notEvent(m.Seq, err)
		}
		return newAcceptedMessage(m.Seq, m.Time, header, m.Data)
	case reply.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	}
	return nil, reply.Error
}

// ErrNotEvent means that a stored message is not an event: something other than Accept stored it. If Accept returns ErrNotEvent,
// such a message occupies the subject, and Accept can store nothing there until the deployed function save has removed that
// message, after the deduplication window. The stream itself works.
var ErrNotEvent = errors.New("not an event")

func notEvent(seq uint64, err error) error {
	return fmt.Errorf("message %d: %w: %w", seq, ErrNotEvent, err)
}

func newAcceptedMessage(seq uint64, at time.Time, h nats.Header, data []byte) (*AcceptedMessage, error) {
	event, err := parseEvent(Attributes(h), data)
	if err != nil {
		return nil, notEvent(seq, err)
	}
	return &AcceptedMessage{Seq: seq, At: at, Fingerprint: h.Get(FingerprintHeader), Event: event}, nil
}
