package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// streams is a service that responds to each call with the next body, and records the calls.
type streams struct {
	bodies  []any           // string = a stream, which breaks unless the string ends with a blank line; nil = a stream without data; a reply; an error
	after   []string        // the Last-Event-ID of each call
	at      []time.Duration // the time from started to each call
	started time.Time
}

func (s *streams) RoundTrip(r *http.Request) (*http.Response, error) {
	s.after = append(s.after, r.Header.Get("Last-Event-ID"))
	s.at = append(s.at, time.Since(s.started))
	res := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Request: r}
	switch body := s.bodies[len(s.after)-1].(type) {
	case string:
		res.Body = io.NopCloser(io.MultiReader(strings.NewReader(body), iotest.ErrReader(io.ErrUnexpectedEOF)))
		if strings.HasSuffix(body, "\n\n") {
			res.Body = io.NopCloser(strings.NewReader(body))
		}
	case reply:
		res.StatusCode, res.Body = body.status, io.NopCloser(strings.NewReader(body.body))
		res.Header = http.Header{"Retry-After": {body.retry}, "Content-Type": {"application/json"}}
	case error:
		return nil, body
	case nil:
		res.Body = silent{r.Context()}
	}
	return res, nil
}

type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) { <-s.ctx.Done(); return 0, s.ctx.Err() }
func (silent) Close() error               { return nil }

func (s *streams) client() *Client {
	s.started = time.Now()
	return &Client{BaseURL: "http://sendonce.test", HTTP: &http.Client{Transport: s, Timeout: time.Millisecond}}
}

func TestStreamContinuesAfterDisconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &streams{bodies: []any{
			": a comment\n\nid: 6\n\nid: 7\nevent: message\ndata: {\"a\":\ndata: 1}\n\nid: 8\nevent: message\ndata: {",
			errors.New("connection refused"),
			busyReply,
			"id: 7\n\nid: 8\nevent: ack\ndata: {}\n\n:\n\nretry: 250\n\n",
			nil,
			"id: 9\n\nretry: 250\n\n",
			reply{status: 403, body: `{"code":403,"message":"no","error":"forbidden"}`},
		}}
		var got []StreamEvent
		var end error
		for e, err := range s.client().Stream(t.Context(), "ann", StreamRequest{}) {
			if end = err; err == nil {
				got = append(got, e)
			}
		}
		require.Equal(t, []StreamEvent{{7, StreamMessage, JSON("{\"a\":\n1}")}, {8, StreamAck, JSON("{}")}}, got)
		var refused *Error
		require.ErrorAs(t, end, &refused)
		require.Equal(t, "forbidden", refused.Code)
		require.Equal(t, []string{"", "7", "7", "7", "8", "8", "9"}, s.after, "an incomplete event is requested again")
		require.GreaterOrEqual(t, s.at[3]-s.at[2], 3*time.Second, "the Retry-After of busyReply is 3 s")
		require.Equal(t, 250*time.Millisecond, s.at[4]-s.at[3])
		require.GreaterOrEqual(t, s.at[5]-s.at[4], streamTimeout)
	})
}

func TestStreamIgnoresOtherContentTypes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &streams{bodies: []any{reply{status: 200, body: "id: 7\nevent: message\ndata: 1\n\n"}, "id: 8\nevent: message\ndata: 2\n\n"}}
		for e, err := range s.client().Stream(t.Context(), "ann", StreamRequest{}) {
			require.NoError(t, err)
			require.EqualValues(t, 8, e.ID, "a response with another Content-Type is ignored, and the call is repeated")
			break
		}
	})
}

func TestStreamLimitsEachEvent(t *testing.T) {
	t.Parallel()
	newlines := "id: 8\nevent: message\n" + strings.Repeat("data: \n", 64<<10) + "\n" // 64 KiB of data, in the longest form
	long := strings.Repeat("x", 2*maxStreamEvent)
	for name, c := range map[string]struct {
		body   string
		events int
	}{
		"large events":   {newlines + newlines + newlines + newlines, 4},
		"a long line":    {newlines + "data: " + long + "\n\n", 1},
		"too many lines": {newlines + newlines[:len(newlines)-1] + newlines[:len(newlines)-1] + newlines[:len(newlines)-1] + "\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &streams{bodies: []any{c.body, reply{status: 403}}}
				events, end := 0, error(nil)
				for _, err := range s.client().Stream(t.Context(), "ann", StreamRequest{}) {
					if end = err; err == nil {
						events++
					}
				}
				require.Equal(t, c.events, events)
				if c.events == 1 {
					require.ErrorContains(t, end, "larger than 1 MiB")
				}
			})
		})
	}
}

func TestStreamEndsWithLoopOrContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		after := int64(6)
		s := &streams{bodies: []any{"id: 7\nevent: message\ndata: 1\n\nid: 8\nevent: message\ndata: 2\n\n"}}
		for e, err := range s.client().Stream(t.Context(), "ann", StreamRequest{After: &after}) {
			require.NoError(t, err)
			require.EqualValues(t, 7, e.ID)
			break
		}
		require.Equal(t, []string{"6"}, s.after)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s = &streams{bodies: []any{nil}}
		var end error
		for _, end = range s.client().Stream(ctx, "ann", StreamRequest{}) {
		}
		require.ErrorIs(t, end, context.DeadlineExceeded)
		require.Equal(t, []string{""}, s.after)
	})
}
