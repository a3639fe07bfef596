// Package stream is the function that sends a user's messages and acknowledgements as they arrive:
//
//	GET /api/v1/stream/{user}
//	POST /api/v1/stream/{user}/token
//
// The GET returns server-sent events from the NATS stream USERS. The events need no query of the database, except to
// authenticate the caller and to find gaps. A request to upgrade gets a WebSocket with the same events, on which the
// client also submits messages: each frame of the client has the content of a POST to /api/v1/messages. A POST to
// …/token returns a token for the URL of the GET, which then needs no credentials.
package stream

import (
	"context"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/task"
)

// Config has the settings of the function.
type Config struct {
	Max time.Duration `envconfig:"SENDONCE_STREAM_MAX" default:"50s" desc:"how long a stream of events, or a WebSocket, lasts before its client has to reconnect, 5s to 55m; set less than the limit of your platform for one call"`
}

// Validate checks the range of Max.
func (c *Config) Validate() []task.Field {
	var bad decode.BadFields
	bad.When(c.Max < 5*time.Second || c.Max > 55*time.Minute, "SENDONCE_STREAM_MAX", "must be between 5s and 55m")
	return bad
}

// Function serves the stream of a user's messages.
var Function = fn.HTTP("stream", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, cfg Config) fn.Routes {
	s := &streamer{env, intake.New(env)}
	events := fn.Stream(fn.Receiver, s.stream).Or(fn.Submitter).Timeout(cfg.Max).TokenInURL()
	return fn.Routes{
		"GET /api/v1/stream/{user}":        fn.WithSocket(events, env.Config.Origins, s.socket),
		"POST /api/v1/stream/{user}/token": fn.Parameters(fn.Receiver, token).Or(fn.Submitter),
	}
}

// stream sends a user's events until ctx ends or an error occurs, and returns the cause. fn ignores an error after
// the end of ctx.
func (s *streamer) stream(ctx context.Context, c *fn.Call, req request, w *fn.EventWriter) error {
	f, err := s.openFollower(ctx, c, req)
	if err != nil {
		return err
	}
	defer f.Close()
	return serve(ctx, c, w, f)
}

// token returns a token for the URL of a user's stream, for an EventSource, which cannot send a header with credentials.
func token(_ context.Context, c *fn.Call, _ struct{}) (any, error) {
	user := c.PathValue("user")
	if !task.ValidUser(user) {
		return nil, task.Invalid([]task.Field{{Name: "user", Message: task.UserRule}})
	}
	if _, err := c.UserToActFor(user); err != nil {
		return nil, err
	}
	text, expires, err := c.Token("/api/v1/stream/" + user)
	if err != nil {
		return nil, err
	}
	return api.StreamToken{Token: text, ExpiresAt: expires.UTC()}, nil
}
