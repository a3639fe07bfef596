package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/streamevent"
	"github.com/sendonce/sendonce/shared/task"
)

const sendCopies = 2 // copies of an event's data in memory while it is sent: the data itself, and the text or frame

// writer writes the events of one event stream, as server-sent events or WebSocket frames.
type writer interface {
	Send(id, event string, data []byte) error
	Mark(id string) error      // sends a position from which to resume, without an event
	Comment(text string) error // for people
}

// session is one open event stream.
type session struct {
	call     *fn.Call
	out      writer
	follower *bus.Follower
	events   int // sent
}

// serve sends all events of f until ctx ends or an error occurs, and returns the cause.
func serve(ctx context.Context, c *fn.Call, out writer, f *bus.Follower) error {
	s := &session{call: c, out: out, follower: f}
	defer func() { c.Log("events", s.events) }()
	err := s.mark()
	for err == nil {
		err = s.sendNext(ctx)
	}
	return err
}

// sendNext waits for an event or a gap and sends it. If the event cannot be encoded, sendNext sends a comment and the
// new position instead, so that later events are not blocked.
func (s *session) sendNext(ctx context.Context) error {
	m, err := s.follower.Next(ctx)
	if gap, ok := errors.AsType[*bus.GapError](err); ok {
		return s.sendGap(gap)
	}
	if err != nil {
		return err
	}
	event, data, err := s.encode(m)
	switch {
	case task.CodeOf(err) == task.CodeServerBusy:
		return err // the client reconnects and continues after the last event that it received
	case err != nil:
		s.call.Log("skipped", m.Seq, "cause", err.Error())
		return errors.Join(s.out.Comment(fmt.Sprintf("event %d cannot be read and is skipped", m.Seq)), s.mark())
	}
	defer s.call.Unreserve()
	s.events++
	return s.out.Send(strconv.FormatUint(m.Seq, 10), event, data)
}

// encode returns the name and the data of an event, and reserves the memory to send the event. encode calls m.Release, which ends
// the read of m, before the event is sent, so that a slow client does not block the reads of the caller's other streams. The error
// has the code server_busy if there is no memory. Any other error means that the event cannot be encoded.
func (s *session) encode(m bus.FollowedMessage) (event string, data []byte, err error) {
	defer m.Release()
	if event, data, err = encodeEvent(m); err != nil {
		return "", nil, err
	}
	return event, data, s.call.TryReserve(sendCopies * len(data))
}

// sendGap sends an event that says that messages may be missing. The id of the event is the position at which
// the stream continues.
func (s *session) sendGap(gap *bus.GapError) error {
	data, err := json.Marshal(api.StreamGapData{
		After: int64(gap.After), Next: int64(gap.Next),
		Message: "messages with ids greater than after and less than next may be missing here; GET /api/v1/messages/peers lists who wrote, GET /api/v1/messages?between=USER,PEER returns the messages of both, " +
			"and GET /api/v1/messages/by-key/CLIENT_MSG_ID returns the state of an accepted message",
	})
	if err != nil {
		return err
	}
	return s.out.Send(strconv.FormatUint(s.follower.After(), 10), api.StreamGap, data)
}

// mark sends the present position. Without a mark, a client that loses the connection before its first event
// would miss the events that arrive before the client reconnects.
func (s *session) mark() error {
	return s.out.Mark(strconv.FormatUint(s.follower.After(), 10))
}

// encodeEvent returns the name and the data of an event. The data of a message is the whole CloudEvent. The data of an
// acknowledgement is only the data of its CloudEvent: the user has the message itself.
func encodeEvent(m bus.FollowedMessage) (event string, data []byte, err error) {
	if kind, isAck := strings.CutPrefix(m.Event.Type(), "sendonce.ack."); isAck && strings.HasSuffix(kind, ".v1") && m.Event.Source() == streamevent.Source {
		if !json.Valid(m.Event.Data()) {
			return "", nil, errors.New("the acknowledgement is not valid JSON")
		}
		return api.StreamAck, m.Event.Data(), nil
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // escapes would make a message up to six times as long
	err = e.Encode(m.Event)
	return api.StreamMessage, bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}
