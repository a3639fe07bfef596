package api

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The kinds of a StreamEvent.
const (
	StreamMessage = "message" // Data is a CloudEvent: a message to the user
	StreamAck     = "ack"     // Data is a LateAck: what became of a message from the user
	StreamGap     = "gap"     // Data is a StreamGapData: messages may be missing before what follows
)

// StreamRequest says where a stream begins: GET /api/v1/stream/{user}.
type StreamRequest struct {
	Token string `json:"token,omitempty"` // instead of credentials; see StreamToken
	After *int64 `json:"after,omitempty"` // behind this event; 0 = with the oldest that is kept. Default: with what comes from now on
}

// StreamToken opens a stream of one user as a parameter: GET /api/v1/stream/{user}?token=…, for an EventSource, which
// cannot send credentials.
type StreamToken struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"` // an open stream goes on; each connection needs a token that is valid
}

// StreamEvent is one event of a user's stream.
type StreamEvent struct {
	ID   int64 // where to go on behind it
	Kind string
	Data JSON
}

// streamSilence is how long a stream may say nothing: three heartbeats.
const streamSilence = 45 * time.Second

// Stream gives what comes in for a user, as it comes, until ctx ends or the loop
// is left. The caller must be the user, or an admin. A stream that ends or breaks
// is taken up where it was, for ever; an event may then come twice, and none is
// missed that is still kept. The one error that is given is the last thing: a
// refusal as *Error, or that of ctx.
func (c *Client) Stream(ctx context.Context, user string, r StreamRequest) iter.Seq2[StreamEvent, error] {
	return func(yield func(StreamEvent, error) bool) {
		s := &streaming{client: c, path: "/api/v1/stream/" + url.PathEscape(user), retry: firstPause}
		if r.After != nil {
			s.last = strconv.FormatInt(*r.After, 10)
		}
		for try := 1; ; try++ {
			began, err := s.once(ctx, func(e StreamEvent) bool { return yield(e, nil) })
			if errors.Is(err, errLeft) {
				return
			}
			if began {
				try = 1
			}
			rest := s.retry
			if err != nil {
				rest = wait(try, err)
			}
			if err != nil && !repeatable(err) || !pause(ctx, rest) {
				yield(StreamEvent{}, cmp.Or(ctx.Err(), err, context.DeadlineExceeded))
				return
			}
		}
	}
}

var errLeft = errors.New("the loop was left")

// streaming is what goes on from one connection to the next.
type streaming struct {
	client *Client
	path   string
	last   string        // the id of the last event; "" = nothing yet
	retry  time.Duration // after an orderly end
}

// once reads one stream to its end. An orderly end is no error.
// began says whether the stream was opened.
func (s *streaming) once(ctx context.Context, each func(StreamEvent) bool) (began bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.client.BaseURL, "/")+s.path, nil)
	if err != nil {
		return false, err
	}
	req.SetBasicAuth(s.client.User, s.client.Password)
	if s.last != "" {
		req.Header.Set("Last-Event-ID", s.last)
	}
	silence := time.AfterFunc(streamSilence, cancel)
	defer silence.Stop()
	endless := *cmp.Or(s.client.HTTP, http.DefaultClient)
	endless.Timeout = 0
	res, err := endless.Do(req)
	if err != nil {
		return false, lost{err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			return false, lost{err}
		}
		return false, refusal(res, raw)
	}
	return true, s.read(bufio.NewReader(res.Body), func() { silence.Reset(streamSilence) }, each)
}

// read takes the lines of a stream apart, until its end.
func (s *streaming) read(body *bufio.Reader, alive func(), each func(StreamEvent) bool) error {
	id, kind, data := s.last, "", []string(nil) // of the event whose end is yet to come
	for {
		line, err := body.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return lost{err}
		}
		alive()
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data = append(data, value)
		case "retry":
			if ms, err := strconv.Atoi(value); err == nil {
				s.retry = time.Duration(ms) * time.Millisecond
			}
		}
		if line != "\n" {
			continue
		}
		s.last = id
		if data != nil {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				return fmt.Errorf("the id %q of an event is not understood: %w", id, err)
			}
			if !each(StreamEvent{ID: n, Kind: kind, Data: JSON(strings.Join(data, "\n"))}) {
				return errLeft
			}
		}
		kind, data = "", nil
	}
}

// StreamGapData is the data of a gap: the messages to the user between two sequence numbers were
// removed from the stream before they were read. Peers and Conversation read them.
type StreamGapData struct {
	After   int64  `json:"after"`   // everything up to this sequence number was read
	Next    int64  `json:"next"`    // the stream continues with this sequence number
	Message string `json:"message"` // for people
}
