package api

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The kinds of a StreamEvent.
const (
	StreamMessage = "message" // Data is a CloudEvent: a message to the user
	StreamAck     = "ack"     // Data is a LateAck: the final acknowledgement of a message from the user
	StreamGap     = "gap"     // Data is a StreamGapData: messages before the next event may be missing
)

// StreamRequest selects where a stream begins: GET /api/v1/stream/{user}.
type StreamRequest struct {
	Token string `json:"token,omitempty"` // instead of credentials; see StreamToken
	After *int64 `json:"after,omitempty"` // begin after the event with this ID; 0 = with the oldest stored event; nil = with the next new event
}

// StreamToken replaces the credentials for the stream of one user: GET /api/v1/stream/{user}?token=…. It is for the
// EventSource of browsers, which cannot send credentials.
type StreamToken struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"` // checked when a stream is opened; an open stream continues
}

// StreamEvent is one event of a user's stream.
type StreamEvent struct {
	ID   int64 // position in the stream; StreamRequest.After continues after it
	Kind string
	Data JSON
}

// maxStreamEvent is the limit of one event in bytes. An event has at most 64 KiB of data, or 448 KiB if each byte is a
// line of its own.
const maxStreamEvent = 1 << 20

// streamTimeout is the time without data after which a stream reconnects and a socket ends: three heartbeats of the
// service.
const streamTimeout = 45 * time.Second

// Stream yields the events of a user as they arrive, until ctx or the loop ends. The caller must be the user, or an
// admin. After each disconnect, Stream reconnects and continues after the last event: an event may be yielded twice,
// and no event that the service still stores is missed. Stream yields at most one error, as the last element: a refusal
// as *Error, the error of ctx, or the reason why no further try is made.
func (c *Client) Stream(ctx context.Context, user string, r StreamRequest) iter.Seq2[StreamEvent, error] {
	return func(yield func(StreamEvent, error) bool) {
		s := &streamReader{client: c, path: "/api/v1/stream/" + url.PathEscape(user), retry: firstPause}
		if r.After != nil {
			s.last = strconv.FormatInt(*r.After, 10)
		}
		for try := 1; ; try++ {
			opened, err := s.readConnection(ctx, func(e StreamEvent) bool { return yield(e, nil) })
			if errors.Is(err, errLoopEnded) {
				return
			}
			if opened {
				try = 1
			}
			delay := s.retry
			if err != nil {
				delay = pauseAfter(try, err)
			}
			if err != nil && !repeatable(err) || !pause(ctx, delay) {
				yield(StreamEvent{}, cmp.Or(ctx.Err(), err, context.DeadlineExceeded))
				return
			}
		}
	}
}

var errLoopEnded = errors.New("the loop over the events has ended")

// streamReader reads a stream over several connections, one after another.
type streamReader struct {
	client *Client
	path   string
	last   string        // the id of the last event; "" = none yet
	retry  time.Duration // pause after the service has closed a connection
}

// readConnection opens a connection and reads until the connection ends. It returns no error if the service has closed
// the connection. opened reports whether the service accepted the request.
func (s *streamReader) readConnection(ctx context.Context, onEvent func(StreamEvent) bool) (opened bool, err error) {
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
	timeout := time.AfterFunc(streamTimeout, cancel)
	defer timeout.Stop()
	client := s.client.httpClient()
	client.Timeout = 0 // a stream stays open
	res, err := client.Do(req)
	if err != nil {
		return false, noResponseError{err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, err := readBody(res)
		if err != nil {
			return false, noResponseError{err}
		}
		return false, refusal(res, raw)
	}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || kind != "text/event-stream" {
		return false, noResponseError{fmt.Errorf("GET %s: status 200, but the Content-Type %q is not that of a stream", s.path, kind)}
	}
	return true, s.read(res.Body, func() { timeout.Reset(streamTimeout) }, onEvent)
}

// read parses the lines of a connection until the connection ends. It calls onLine after each line and onEvent for each
// event. If onEvent returns false, read returns errLoopEnded.
func (s *streamReader) read(connection io.Reader, onLine func(), onEvent func(StreamEvent) bool) error {
	limited := &io.LimitedReader{R: connection, N: maxStreamEvent}
	body := bufio.NewReader(limited)
	id, kind, data := s.last, "", []string(nil) // of the event that is being read
	for {
		line, err := body.ReadString('\n')
		if errors.Is(err, io.EOF) {
			if limited.N <= 0 {
				return fmt.Errorf("the event after %q is larger than %d MiB", s.last, maxStreamEvent>>20)
			}
			return nil
		}
		if err != nil {
			return noResponseError{err}
		}
		onLine()
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
		s.last, limited.N = id, maxStreamEvent
		if data != nil {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				return fmt.Errorf("the event id %q is not a number: %w", id, err)
			}
			if !onEvent(StreamEvent{ID: n, Kind: kind, Data: JSON(strings.Join(data, "\n"))}) {
				return errLoopEnded
			}
		}
		kind, data = "", nil
	}
}

// StreamGapData is the data of a gap: messages to the user with ids greater than After and less than Next may have been
// removed from the stream before the client read them. Messages of this range that were not removed came before the gap.
// Peers and Conversation return all messages of this range. If the client reconnected after a message of this range, but
// before the gap, messages before After may be missing too.
type StreamGapData struct {
	After   int64  `json:"after"`   // nothing is missing up to this sequence number, with the exception above
	Next    int64  `json:"next"`    // the stream continues with this sequence number
	Message string `json:"message"` // for people
}
