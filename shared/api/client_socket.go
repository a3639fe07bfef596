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

	"github.com/coder/websocket"
)

const maxSocketFrame = 1 << 20 // bytes of one frame from the service

// Socket is one WebSocket of a user: it sends messages and gets the user's events.
// It ends by itself after a while, and breaks when the network does. Come back with
// another one After the last event, and send again what had no response: by its
// ClientMsgID nothing is done twice.
type Socket struct {
	conn *websocket.Conn
	last *int64
}

// Socket opens a WebSocket for a user. The caller must be the user, or an admin.
// A refusal is an *Error.
func (c *Client) Socket(ctx context.Context, user string, r StreamRequest) (*Socket, error) {
	header := http.Header{}
	(&http.Request{Header: header}).SetBasicAuth(c.User, c.Password)
	if r.After != nil {
		header.Set("Last-Event-ID", strconv.FormatInt(*r.After, 10))
	}
	endless := *cmp.Or(c.HTTP, http.DefaultClient)
	endless.Timeout = 0
	conn, res, err := websocket.Dial(ctx, strings.TrimSuffix(c.BaseURL, "/")+"/api/v1/stream/"+url.PathEscape(user),
		&websocket.DialOptions{HTTPClient: &endless, HTTPHeader: header})
	if err == nil {
		conn.SetReadLimit(maxSocketFrame)
		return &Socket{conn: conn, last: r.After}, nil
	}
	if res == nil || res.StatusCode == http.StatusSwitchingProtocols {
		return nil, lost{err}
	}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, lost{err}
	}
	return nil, refusal(res, raw)
}

// Send sends a message. The response is a frame that Next returns: an ack without
// ID, or an error. Responses come in the order of the messages.
func (s *Socket) Send(ctx context.Context, r MessageRequest) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the message: %w", err)
	}
	return s.conn.Write(ctx, websocket.MessageText, text)
}

// Next waits for the next frame. Any error ends the socket; ctx closes it when it
// ends. It is for one goroutine at a time, which may be another one than Send's.
func (s *Socket) Next(ctx context.Context) (f SocketFrame, err error) {
	_, text, err := s.conn.Read(ctx)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return f, fmt.Errorf("the frame %.100q is not understood: %w", text, err)
	}
	if f.ID != nil {
		s.last = new(int64(*f.ID))
	}
	return f, nil
}

// After is where to go on: behind the newest event that Next has returned. nil
// before the first frame, unless the socket was opened with one.
func (s *Socket) After() *int64 { return s.last }

// Close ends the socket in order.
func (s *Socket) Close() error { return s.conn.Close(websocket.StatusNormalClosure, "") }
