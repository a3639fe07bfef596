package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// StreamEvent is a server-sent event.
type StreamEvent struct{ ID, Kind, Data string }

// StreamReader is a client of a stream of server-sent events.
type StreamReader struct {
	T     *testing.T
	Req   *http.Request
	Res   *http.Response
	Body  *bufio.Reader
	Close context.CancelFunc
	Text  strings.Builder // what Block has read so far
	Last  string          // the last id that Block has read
}

// OpenStream opens a stream, and returns when the server has sent the position where the stream begins.
func OpenStream(s *Client, path string, header ...string) *StreamReader {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.T.Context()), 2*WaitLimit)
	s.T.Cleanup(cancel)
	req := s.Request(ctx, "GET", path, "", header...)
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.T, err)
	s.T.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(s.T, 200, res.StatusCode)
	e := &StreamReader{T: s.T, Req: req, Res: res, Body: bufio.NewReader(res.Body), Close: cancel}
	require.Empty(s.T, e.Block().Data, "a stream begins with its position")
	require.NotEmpty(s.T, e.Last)
	return e
}

// Block reads up to a blank line: an event, a comment, or an id alone.
func (e *StreamReader) Block() (b StreamEvent) {
	e.T.Helper()
	for {
		line, err := e.Body.ReadString('\n')
		require.NoError(e.T, err, "after %s", e.Text.String())
		e.Text.WriteString(line)
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			b.ID, e.Last = value, value
		case "event":
			b.Kind = value
		case "data":
			b.Data += value
		case "":
			if line == "\n" {
				return b
			}
		}
	}
}

// Event waits for the next event that has data.
func (e *StreamReader) Event() StreamEvent {
	e.T.Helper()
	for {
		if b := e.Block(); b.Data != "" {
			return b
		}
	}
}

// NextMessage waits for the next message and returns its id.
func (e *StreamReader) NextMessage() string {
	e.T.Helper()
	next := e.Event()
	require.Equal(e.T, "message", next.Kind)
	var event cloudevents.Event
	require.NoError(e.T, json.Unmarshal([]byte(next.Data), &event), next.Data)
	return event.ID()
}

// End reads until the server ends the stream, and requires that the last field is retry.
func (e *StreamReader) End() {
	e.T.Helper()
	var rest strings.Builder
	_, err := e.Body.WriteTo(&rest)
	require.NoError(e.T, err)
	require.True(e.T, strings.HasSuffix(rest.String(), "retry: 250\n\n"), rest.String())
}

// SocketClient is a WebSocket of a user.
type SocketClient struct {
	T      *testing.T
	Socket *api.Socket
}

// OpenSocket opens a WebSocket of a user, and reads its first frame, which has the position where the stream begins.
func OpenSocket(s *Client, user string, after *int64) *SocketClient {
	s.T.Helper()
	socket, err := api.NewClient(s.URL, s.User, s.Password).Socket(s.T.Context(), user, api.StreamRequest{After: after})
	require.NoError(s.T, err)
	c := &SocketClient{s.T, socket}
	s.T.Cleanup(func() { _ = socket.Close() })
	mark := c.Next()
	require.Equal(s.T, api.SocketMark, mark.Event)
	require.NotNil(s.T, mark.ID)
	return c
}

// Send sends a message as a frame.
func (c *SocketClient) Send(r api.MessageRequest) {
	c.T.Helper()
	require.NoError(c.T, c.Socket.Send(c.T.Context(), r))
}

// Next waits for the next frame.
func (c *SocketClient) Next() api.SocketFrame {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.T.Context()), WaitLimit)
	defer cancel()
	f, err := c.Socket.Next(ctx)
	require.NoError(c.T, err)
	return f
}

// DecodeStrictly decodes JSON, which must have no unknown fields.
func DecodeStrictly[T any](t *testing.T, data []byte) (v T) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&v), "%s", data)
	return v
}

// Ack waits for the next frame, which must acknowledge a message that the client sent.
func (c *SocketClient) Ack() api.SocketAck {
	c.T.Helper()
	f := c.Next()
	require.Equal(c.T, api.StreamAck, f.Event, "%s", f.Data)
	require.Nil(c.T, f.ID, "a response is not an event of the stream")
	return DecodeStrictly[api.SocketAck](c.T, f.Data)
}

// Refusal waits for the next frame, which must refuse a frame that the client sent.
func (c *SocketClient) Refusal() api.SocketFailure {
	c.T.Helper()
	f := c.Next()
	require.Equal(c.T, api.SocketError, f.Event, "%s", f.Data)
	require.Nil(c.T, f.ID)
	return DecodeStrictly[api.SocketFailure](c.T, f.Data)
}

// Message waits for the next frame, which must be a message to the user, and returns the id and the CloudEvent of the frame.
func (c *SocketClient) Message() (id int64, event cloudevents.Event) {
	c.T.Helper()
	f := c.Next()
	require.Equal(c.T, api.StreamMessage, f.Event, "%s", f.Data)
	require.NoError(c.T, json.Unmarshal(f.Data, &event))
	return int64(*f.ID), event
}

// TextMessage returns a message of the type "text". data is JSON.
func TextMessage(key, to, data string) api.MessageRequest {
	return api.MessageRequest{ClientMsgID: key, To: to, Type: "text", Data: api.JSON(data)}
}

// Ended returns a channel that receives the rest of the stream when the stream has ended.
func (e *StreamReader) Ended() <-chan string {
	done := make(chan string, 1)
	go func() {
		var rest strings.Builder
		_, _ = io.Copy(&rest, e.Body) // unlike in End, the stream may be cut off, without retry
		done <- rest.String()
	}()
	return done
}

// Ended returns a channel that receives the error that ended the socket.
func (c *SocketClient) Ended() <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Socket.Next(c.T.Context()); err != nil {
				done <- err
				return
			}
		}
	}()
	return done
}
