package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const maxSocketFrame = 1 << 20 // bytes of one frame from the service

// Socket is a WebSocket of a user: it sends messages and receives the user's events. The service closes each socket
// after a while (SENDONCE_STREAM_MAX, 50 s by default), and a network failure breaks it. Then open another socket with
// After, and send again each message that has no response: with the same ClientMsgID it is saved once.
type Socket struct {
	conn    *websocket.Conn
	silence *time.Timer // closes the socket; runs during Next only
	last    *int64      // the last ID that Next has returned; see After
}

// Socket opens a WebSocket for a user. The caller must be the user, or an admin. A refusal is an *Error.
func (c *Client) Socket(ctx context.Context, user string, r StreamRequest) (*Socket, error) {
	header := http.Header{}
	(&http.Request{Header: header}).SetBasicAuth(c.User, c.Password)
	if r.After != nil {
		header.Set("Last-Event-ID", strconv.FormatInt(*r.After, 10))
	}
	client := c.httpClient()
	client.Timeout = cmp.Or(client.Timeout, streamTimeout) // of the handshake only
	s := &Socket{last: r.After}
	onPing := func(context.Context, []byte) bool { s.silence.Reset(streamTimeout); return true }
	conn, res, err := websocket.Dial(ctx, strings.TrimSuffix(c.BaseURL, "/")+"/api/v1/stream/"+url.PathEscape(user),
		&websocket.DialOptions{HTTPClient: client, HTTPHeader: header, OnPingReceived: onPing})
	if err == nil {
		conn.SetReadLimit(maxSocketFrame)
		s.conn, s.silence = conn, time.AfterFunc(streamTimeout, func() { _ = conn.CloseNow() })
		s.silence.Stop()
		return s, nil
	}
	if res == nil || res.StatusCode == http.StatusSwitchingProtocols {
		return nil, noResponseError{err}
	}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, noResponseError{err}
	}
	return nil, refusal(res, raw)
}

// Send sends a message. The response is a frame that Next returns: an ack without ID, or an error. Responses come in the
// order of the messages.
func (s *Socket) Send(ctx context.Context, r MessageRequest) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the message: %w", err)
	}
	return s.conn.Write(ctx, websocket.MessageText, text)
}

// Next waits for the next frame. A broken connection, the end of ctx, or 45 s without a frame or ping of the service
// closes the socket. Only one goroutine at a time may call Next; other goroutines may call Send meanwhile.
func (s *Socket) Next(ctx context.Context) (f SocketFrame, err error) {
	s.silence.Reset(streamTimeout)
	_, text, err := s.conn.Read(ctx)
	if closed := !s.silence.Stop(); closed && err != nil {
		return f, fmt.Errorf("nothing received for %s: %w", streamTimeout, err)
	}
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, fmt.Errorf("decode the frame %.100q: %w", text, err)
	}
	if f.ID != nil {
		s.last = new(int64(*f.ID))
	}
	return f, nil
}

// After returns the last ID that Next has returned, for StreamRequest.After of the next socket. Before the first frame
// with an ID, it returns the After with which the socket was opened.
func (s *Socket) After() *int64 { return s.last }

// Close closes the socket with the status "normal closure".
func (s *Socket) Close() error { return s.conn.Close(websocket.StatusNormalClosure, "") }
