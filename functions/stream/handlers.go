package stream

import (
	"context"
	"errors"
	"strconv"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	lastEventID  = "Last-Event-ID"
	positionRule = "must be the id of an event: an integer between 0 and 9223372036854775807"
)

type streamer struct {
	env    *fn.Env
	intake *intake.Intake
}

type request api.StreamRequest

func (r *request) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(r.After != nil && *r.After < 0, "after", positionRule)
	return bad
}

// openFollower starts to read the events of the user in the path, if the caller may read them.
func (s *streamer) openFollower(ctx context.Context, c *fn.Call, req request) (*bus.Follower, error) {
	user := c.PathValue("user")
	if _, err := c.UserToActFor(user); err != nil {
		return nil, err
	}
	after, err := startPosition(c, req)
	if err != nil {
		return nil, err
	}
	readRemoved := func(ctx context.Context) (uint64, error) { return s.env.Messages.InboxTrimmed(ctx, user) }
	f, err := s.env.Bus().Follow(ctx, user, after, readRemoved, c.AcquireRead)
	if err != nil {
		return nil, errors.Join(task.Busy("NATS is unavailable, try again"), err)
	}
	return f, nil
}

// startPosition returns the id of the event after which the stream starts: the header Last-Event-ID, or without it the
// parameter after; nil = start with new events. startPosition also checks the name of the user in the path.
func startPosition(c *fn.Call, req request) (*uint64, error) {
	var bad decode.BadFields
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
