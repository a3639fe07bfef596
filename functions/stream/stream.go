// Package stream is the function that sends a user what comes in, as it comes
// (the original two-phase acknowledgement):
//
//	GET /api/v1/stream/{user}
//
// It answers with server-sent events, read from the stream that the relay
// publishes to; that asks the database for nothing but the caller. A request to
// upgrade gets a WebSocket, which carries the same events and takes messages in:
// each frame of the client is the body of a POST to /api/v1/messages.
package stream

import (
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
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Config is the function's settings.
type Config struct {
	Max time.Duration `envconfig:"SENDONCE_STREAM_MAX" default:"50s" desc:"how long a stream of events, or a WebSocket, lasts before its client has to come back, 5s to 55m; less than the platform's own limit for calls"`
}

// Validate checks what the types alone cannot.
func (c *Config) Validate() []task.Field {
	var bad decode.Rules
	bad.When(c.Max < 5*time.Second || c.Max > 55*time.Minute, "SENDONCE_STREAM_MAX", "must be between 5s and 55m")
	return bad
}

// Function is this package's line in the catalogue.
var Function = fn.HTTP("stream", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	s := &streamer{bus: env.Bus(), db: env.DB(), intake: intake.New(env)}
	events := fn.Stream(fn.Receiver, s.stream).Or(fn.Submitter).Timeout(cfg.Max)
	return fn.Routes{"GET /api/v1/stream/{user}": fn.WithSocket(events, env.Config.Origins, s.socket)}
}

const (
	lastEventID = "Last-Event-ID"
	positionIs  = "must be the id of an event: an integer between 0 and 9223372036854775807"
	away        = "the broker is away, try again"
)

type streamer struct {
	bus    *bus.Bus
	db     *store.DB
	intake *intake.Intake
}

// request is api.StreamRequest with its rules.
type request api.StreamRequest

// Validate names every field whose value is not acceptable.
func (r *request) Validate() []task.Field {
	var bad decode.Rules
	bad.When(r.After != nil && *r.After < 0, "after", positionIs)
	return bad
}

// stream sends a user's events until ctx ends, which is no failure.
func (s *streamer) stream(ctx context.Context, c *fn.Call, req request, w *fn.EventWriter) error {
	f, err := s.follow(ctx, c, req)
	if err != nil {
		return err
	}
	defer f.Close()
	return tell(ctx, c, w, f)
}

// follow begins to read the events of the user in the path, if the caller may.
func (s *streamer) follow(ctx context.Context, c *fn.Call, req request) (*bus.Follower, error) {
	if _, err := c.ActFor(c.PathValue("user")); err != nil {
		return nil, err
	}
	after, err := position(c, req)
	if err != nil {
		return nil, err
	}
	user := c.PathValue("user")
	removed := func(ctx context.Context) (uint64, error) { return s.db.InboxTrimmed(ctx, user) }
	f, err := s.bus.Follow(ctx, user, after, removed, c.AcquireRead)
	if err != nil {
		return nil, errors.Join(&task.Error{Code: task.CodeServerBusy, Message: away, RetryAfter: time.Second}, err)
	}
	return f, nil
}

// position is where to begin: after the event that the client saw last, or else
// where the call says.
func position(c *fn.Call, req request) (*uint64, error) {
	var bad decode.Rules
	bad.When(!task.ValidUser(c.PathValue("user")), "user", task.UserRule)
	var after *uint64
	if req.After != nil {
		after = new(uint64(*req.After))
	}
	if last := c.RequestHeader().Get(lastEventID); last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		bad.When(err != nil, lastEventID, positionIs)
		after = &n
	}
	if len(bad) > 0 {
		return nil, task.Invalid(bad)
	}
	return after, nil
}

// writer is where the events of one stream go: server-sent events or frames of a
// WebSocket.
type writer interface {
	Send(id, event string, data []byte) error
	Mark(id string) error
	Comment(text string) error
}

// telling is one stream.
type telling struct {
	call   *fn.Call
	out    writer
	from   *bus.Follower
	events int
}

// tell sends all that f reads until ctx ends.
func tell(ctx context.Context, c *fn.Call, out writer, f *bus.Follower) error {
	t := &telling{call: c, out: out, from: f}
	defer func() { c.Log("events", t.events) }()
	err := t.mark()
	for err == nil {
		err = t.next(ctx)
	}
	return err
}

// next waits for what comes and sends it. What cannot be sent is passed over
// with a comment: it must not hold up what comes after it.
func (t *telling) next(ctx context.Context) error {
	m, err := t.from.Next(ctx)
	var gap *bus.GapError
	if errors.As(err, &gap) {
		return t.gap(gap)
	}
	if err != nil {
		return err
	}
	event, data, err := encode(m)
	if err != nil {
		t.call.Log("passed_over", m.Seq, "because", err.Error())
		return errors.Join(t.out.Comment(fmt.Sprintf("event %d is not readable and passed over", m.Seq)), t.mark())
	}
	t.events++
	return t.out.Send(strconv.FormatUint(m.Seq, 10), event, data)
}

// encode is wire as the end of the turn in which m was read: a client that is slow to
// take it holds up no other.
func encode(m bus.FollowedMessage) (event string, data []byte, err error) {
	defer m.Release()
	return wire(m)
}

// gap says that messages may be missing: the place of the event is where the
// stream goes on.
func (t *telling) gap(gap *bus.GapError) error {
	data, err := json.Marshal(api.StreamGapData{
		After: int64(gap.After), Next: int64(gap.Next),
		Message: "messages after the first place and before the second may be missing here; GET /api/v1/messages/peers lists who wrote, GET /api/v1/messages?between=USER,PEER what, " +
			"and GET /api/v1/messages/by-key/CLIENT_MSG_ID what became of accepted messages",
	})
	if err != nil {
		return err
	}
	return t.out.Send(strconv.FormatUint(t.from.After(), 10), api.StreamGap, data)
}

// mark has the client come back to this place: one who has had no event yet would
// begin with what comes from then on.
func (t *telling) mark() error {
	return t.out.Mark(strconv.FormatUint(t.from.After(), 10))
}

// wire is the kind and the data of an event. An acknowledgement is for the
// sender, who knows its message; all else is told whole.
func wire(m bus.FollowedMessage) (event string, data []byte, err error) {
	if kind, isAck := strings.CutPrefix(m.Event.Type(), "sendonce.ack."); isAck && strings.HasSuffix(kind, ".v1") && m.Event.Source() == "/sendonce" {
		if !json.Valid(m.Event.Data()) {
			return "", nil, errors.New("an acknowledgement that is no JSON")
		}
		return api.StreamAck, m.Event.Data(), nil
	}
	data, err = json.Marshal(m.Event)
	return api.StreamMessage, data, err
}
