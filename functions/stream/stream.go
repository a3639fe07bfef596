// Package stream is the function that sends a user's messages and acknowledgements as they arrive:
//
//	GET /api/v1/stream/{user}
//	POST /api/v1/stream/{user}/token
//
// The response is server-sent events from the NATS stream USERS. The database is used to authenticate the
// caller and to find gaps, not for the events. A request to upgrade gets a WebSocket with the same events,
// on which the client also submits messages: each frame of the client is the body of a POST to
// /api/v1/messages.
package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the function's settings.
type Config struct {
	Max time.Duration `envconfig:"SENDONCE_STREAM_MAX" default:"50s" desc:"how long a stream of events, or a WebSocket, lasts before its client has to reconnect, 5s to 55m; set less than the limit of your platform for one call"`
}

// Validate checks the range of Max.
func (c *Config) Validate() []task.Field {
	var bad decode.Rules
	bad.When(c.Max < 5*time.Second || c.Max > 55*time.Minute, "SENDONCE_STREAM_MAX", "must be between 5s and 55m")
	return bad
}

// Function serves the stream of a user's messages.
var Function = fn.HTTP("stream", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	s := &streamer{bus: env.Bus(), messages: env.Messages, intake: intake.New(env)}
	events := fn.Stream(fn.Receiver, s.stream).Or(fn.Submitter).Timeout(cfg.Max).TokenInURL()
	return fn.Routes{
		"GET /api/v1/stream/{user}":        fn.WithSocket(events, env.Config.Origins, s.socket),
		"POST /api/v1/stream/{user}/token": fn.Query(fn.Receiver, token).Or(fn.Submitter),
	}
}

const (
	lastEventID  = "Last-Event-ID"
	positionRule = "must be the id of an event: an integer between 0 and 9223372036854775807"
	unavailable  = "NATS is unavailable, try again"

	sendCopies = 2 // of the data of an event in memory: the data, and the text or frame that is sent
)

type streamer struct {
	bus      *bus.Bus
	messages *messages.Store
	intake   *intake.Intake
}

// request adds validation to api.StreamRequest.
type request api.StreamRequest

func (r *request) Validate() []task.Field {
	var bad decode.Rules
	bad.When(r.After != nil && *r.After < 0, "after", positionRule)
	return bad
}

// stream sends a user's events until ctx ends, and returns the cause, which does not count as a failure.
func (s *streamer) stream(ctx context.Context, c *fn.Call, req request, w *fn.EventWriter) error {
	f, err := s.openFollower(ctx, c, req)
	if err != nil {
		return err
	}
	defer f.Close()
	return serve(ctx, c, w, f)
}

// token returns a token for the stream of a user, for an EventSource, which cannot send credentials.
func token(_ context.Context, c *fn.Call, _ struct{}) (any, error) {
	user := c.PathValue("user")
	if !task.ValidUser(user) {
		return nil, task.Invalid([]task.Field{{Name: "user", Message: task.UserRule}})
	}
	if _, err := c.ActFor(user); err != nil {
		return nil, err
	}
	text, expires, err := c.Token("/api/v1/stream/" + user)
	if err != nil {
		return nil, err
	}
	return api.StreamToken{Token: text, ExpiresAt: expires.UTC()}, nil
}

// openFollower starts to read the events of the user in the path, if the caller may read them.
func (s *streamer) openFollower(ctx context.Context, c *fn.Call, req request) (*bus.Follower, error) {
	user := c.PathValue("user")
	if _, err := c.ActFor(user); err != nil {
		return nil, err
	}
	after, err := startAfter(c, req)
	if err != nil {
		return nil, err
	}
	removed := func(ctx context.Context) (uint64, error) { return s.messages.InboxTrimmed(ctx, user) }
	f, err := s.bus.Follow(ctx, user, after, removed, c.AcquireRead)
	if err != nil {
		return nil, errors.Join(fn.Busy(unavailable), err)
	}
	return f, nil
}

// startAfter returns the id after which to start, from the header Last-Event-ID or else the parameter after;
// nil = start with new events.
func startAfter(c *fn.Call, req request) (*uint64, error) {
	var bad decode.Rules
	bad.When(!task.ValidUser(c.PathValue("user")), "user", task.UserRule)
	var after *uint64
	if req.After != nil {
		after = new(uint64(*req.After))
	}
	if last := c.RequestHeader().Get(lastEventID); last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		bad.When(err != nil, lastEventID, positionRule)
		after = &n
	}
	if len(bad) > 0 {
		return nil, task.Invalid(bad)
	}
	return after, nil
}

// writer writes the events of one stream, as server-sent events or WebSocket frames.
type writer interface {
	Send(id, event string, data []byte) error
	Mark(id string) error      // sends a position from which to resume, without an event
	Comment(text string) error // for people
}

// session is one open stream.
type session struct {
	call     *fn.Call
	out      writer
	follower *bus.Follower
	events   int
}

// serve sends all events of f until ctx ends.
func serve(ctx context.Context, c *fn.Call, out writer, f *bus.Follower) error {
	s := &session{call: c, out: out, follower: f}
	defer func() { c.Log("events", s.events) }()
	err := s.mark()
	for err == nil {
		err = s.next(ctx)
	}
	return err
}

// next waits for an event and sends it. If the event cannot be encoded, next sends a comment instead, so
// that later events are not blocked.
func (s *session) next(ctx context.Context) error {
	m, err := s.follower.Next(ctx)
	var gap *bus.GapError
	if errors.As(err, &gap) {
		return s.gap(gap)
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
		return errors.Join(s.out.Comment(fmt.Sprintf("event %d is not readable and skipped", m.Seq)), s.mark())
	}
	defer s.call.Unreserve()
	s.events++
	return s.out.Send(strconv.FormatUint(m.Seq, 10), event, data)
}

// encode returns the name and the data of an event, and reserves the memory to send it. It releases m
// before the event is sent: a slow client must not block others. The error has the code server_busy if
// there is no memory; any other error means that the event cannot be encoded.
func (s *session) encode(m bus.FollowedMessage) (event string, data []byte, err error) {
	defer m.Release()
	if event, data, err = encodeEvent(m); err != nil {
		return "", nil, err
	}
	return event, data, s.call.TryReserve(sendCopies * len(data))
}

// gap sends an event that says that messages may be missing. The id of the event is the position at which
// the stream continues.
func (s *session) gap(gap *bus.GapError) error {
	data, err := json.Marshal(api.StreamGapData{
		After: int64(gap.After), Next: int64(gap.Next),
		Message: "messages with ids greater than after and less than next may be missing here; GET /api/v1/messages/peers lists who wrote, GET /api/v1/messages?between=USER,PEER their messages, " +
			"and GET /api/v1/messages/by-key/CLIENT_MSG_ID returns the state of an accepted message",
	})
	if err != nil {
		return err
	}
	return s.out.Send(strconv.FormatUint(s.follower.After(), 10), api.StreamGap, data)
}

// mark sends the present position. Without a mark, a client that reconnects before its first event would
// miss the events in between.
func (s *session) mark() error {
	return s.out.Mark(strconv.FormatUint(s.follower.After(), 10))
}

// encodeEvent returns the name and the data of an event: the whole event, but of an acknowledgement only the
// data, because the user sent the message.
func encodeEvent(m bus.FollowedMessage) (event string, data []byte, err error) {
	if kind, isAck := strings.CutPrefix(m.Event.Type(), "sendonce.ack."); isAck && strings.HasSuffix(kind, ".v1") && m.Event.Source() == "/sendonce" {
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
