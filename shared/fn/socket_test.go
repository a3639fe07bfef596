package fn

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

type sayRequest struct {
	ClientMsgID string `json:"client_msg_id"`
	Say         string `json:"say"`
}

// echo responds to a frame with the same text. It panics if the frame says "panic".
func echo(_ context.Context, c *Call) (any, error) {
	var req sayRequest
	bad := decode.Object(c.Body, &req)
	c.Correlate(req.ClientMsgID)
	if bad != nil {
		return nil, bad
	}
	if req.Say == "panic" {
		panic("bug")
	}
	return req, nil
}

// sayFunction has a stream that can be upgraded to a socket, whose frames handle handles.
func sayFunction(handle FrameHandler) Function {
	return HTTP("talker", func(*Env, struct{}) Routes {
		events := Stream(Receiver, waits).Or(Submitter)
		return Routes{"GET /api/v1/stream": WithSocket(events, []string{"https://chat.example"}, func(ctx context.Context, _ *Call, req streamRequest, s *Socket) error {
			if req.After == 404 {
				return task.Refuse(task.CodeNotFound, "no such user")
			}
			if err := s.Open(1000, handle); err != nil {
				return err
			}
			if err := s.Send(api.SocketFrame{Event: api.SocketMark}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})}
	})
}

// client is the client's end of a socket.
type client struct {
	t    *testing.T
	conn *websocket.Conn
}

// dial opens a socket of sayFunction and reads its first frame. web may be nil.
func (h *testServer) dial(web *http.Client, options ...func(*http.Request)) *client {
	h.t.Helper()
	r := h.request("GET", "/api/v1/stream", "", options...)
	conn, _, err := websocket.Dial(h.t.Context(), r.URL.String(), &websocket.DialOptions{HTTPHeader: r.Header, HTTPClient: web})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.CloseNow() })
	c := &client{h.t, conn}
	require.JSONEq(h.t, `{"event":"mark"}`, c.read())
	return c
}

func (c *client) send(text string) {
	c.t.Helper()
	require.NoError(c.t, c.conn.Write(c.t.Context(), websocket.MessageText, []byte(text)))
}

func (c *client) read() string {
	c.t.Helper()
	_, text, err := c.conn.Read(context.WithoutCancel(c.t.Context()))
	require.NoError(c.t, err)
	return string(text)
}

// refusal reads a frame that must be an error.
func (c *client) refusal() (f api.SocketFailure) {
	c.t.Helper()
	text := c.read()
	var frame api.SocketFrame
	require.NoError(c.t, json.Unmarshal([]byte(text), &frame))
	require.Equal(c.t, "error", frame.Event, text)
	require.Nil(c.t, frame.ID)
	require.NoError(c.t, json.Unmarshal(frame.Data, &f))
	return f
}

// closed reads until the socket is closed with a close frame, and returns the close frame.
func (c *client) closed() websocket.CloseError {
	c.t.Helper()
	for {
		_, _, err := c.conn.Read(context.WithoutCancel(c.t.Context()))
		if err == nil {
			continue
		}
		var closed websocket.CloseError
		require.ErrorAs(c.t, err, &closed)
		return closed
	}
}

func TestResponsesToFramesAreInOrder(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, sayFunction(echo))
	c := h.dial(nil)
	for _, text := range []string{
		`{"client_msg_id":"1","say":"<a&b>"}`, `{"client_msg_id":"2","say":3,"shout":true}`, `{"client_msg_id":`, ``, `{"client_msg_id":"3","say":"panic"}`, `{"client_msg_id":"4","say":"d"}`,
	} {
		c.send(text)
	}
	require.Equal(t, `{"client_msg_id":"1","say":"<a&b>"}`, c.read())
	bad := c.refusal()
	require.Equal(t, []any{400, "invalid_request", "2"}, []any{bad.Code, bad.Error, bad.ClientMsgID})
	require.Len(t, bad.Fields, 2, "%v", bad.Fields)
	for range 2 {
		bad = c.refusal()
		require.Equal(t, 400, bad.Code)
		require.Equal(t, "body", bad.Fields[0].Field)
		require.Empty(t, bad.ClientMsgID)
	}
	bad = c.refusal()
	require.Equal(t, []any{500, "internal", "3"}, []any{bad.Code, bad.Error, bad.ClientMsgID})
	require.NotContains(t, bad.Message, "bug")
	require.JSONEq(t, `{"client_msg_id":"4","say":"d"}`, c.read(), "the socket goes on")
	require.NoError(t, c.conn.Write(t.Context(), websocket.MessageBinary, []byte(`{}`)))
	require.Equal(t, "must be a text frame", c.refusal().Fields[0].Message)
	require.NoError(t, c.conn.Close(websocket.StatusNormalClosure, ""))

	lines := h.callLines(8)
	for i, status := range []float64{200, 400, 400, 400, 500, 200, 400, 101} {
		require.Equal(t, status, lines[i]["status"], "%v", lines[i])
	}
	require.Equal(t, "GET /api/v1/stream frame", lines[0]["route"])
	require.Equal(t, "GET /api/v1/stream", lines[7]["route"])
	require.Nil(t, lines[7]["error"], "an orderly close is no error")
	require.Contains(t, lines[4]["cause"], "bug")
}

func TestTooLargeFrameEndsSocket(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, sayFunction(echo))
	c := h.dial(nil)
	fits := `{"say":"` + strings.Repeat("x", 1000-10) + `"}`
	c.send(fits)
	require.Contains(t, c.read(), "xxx")
	c.send(fits + " ")
	bad := c.refusal()
	require.Equal(t, []any{413, "too_large", "a frame must have at most 1000 bytes"}, []any{bad.Code, bad.Error, bad.Message})
	require.Equal(t, websocket.CloseError{Code: websocket.StatusMessageTooBig, Reason: "a frame must have at most 1000 bytes"}, c.closed())
}

// upgrade makes a request the handshake of a WebSocket.
func upgrade(r *http.Request) {
	header("Connection", "keep-alive, Upgrade", "Upgrade", "WebSocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")(r)
}

func TestHandshakeIsRefusedLikeACall(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, func(c *settings.Config) { c.MaxWaiting = 1 })
	runServer(t, h, nil, sayFunction(echo))
	call := func(options ...func(*http.Request)) reply {
		t.Helper()
		return h.call("GET", "/api/v1/stream?after=404", "", append([]func(*http.Request){upgrade}, options...)...)
	}
	require.Equal(t, 404, call().status, "the refusal of the function")
	require.Equal(t, 404, call(as("submitter", "token")).status)
	require.Equal(t, 403, call(as("sender", "token")).status)
	require.Equal(t, 401, call(as("receiver", "wrong")).status)
	old := call(header("Sec-WebSocket-Version", "8"), header("Sec-WebSocket-Key", "short"))
	require.Equal(t, 400, old.status)
	require.Equal(t, "13", old.header.Get("Sec-WebSocket-Version"))
	require.Len(t, old.Fields, 2)
	for origin, status := range map[string]int{
		"https://evil.example": 403, "null": 403, "https://chat.example.evil": 403, "http://chat.example": 403,
		"https://chat.example": 404, strings.Replace(h.url, "http://", "https://", 1): 404,
	} {
		require.Equal(t, status, call(header("Origin", origin)).status, origin)
	}
	require.Equal(t, 400, h.call("GET", "/api/v1/stream?before=3", "").status, "without an upgrade this is the stream, which has no parameter before")
	h.dial(nil)
	full := call()
	require.Equal(t, 429, full.status, "a socket counts as a stream")
	require.NotEmpty(t, full.header.Get("Retry-After"))
}

// The request is written as text, because the WebSocket library sends only HTTP/1.1.
func TestHandshakeOverHTTP10IsRefusedAsBadRequest(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, sayFunction(echo))
	var request strings.Builder
	require.NoError(t, h.request("GET", "/api/v1/stream", "", upgrade, header("Connection", "Upgrade")).Write(&request)) // without keep-alive
	w := h.dialRaw(t)
	w.send(strings.Replace(request.String(), "HTTP/1.1", "HTTP/1.0", 1))
	response, err := io.ReadAll(w.responses)
	require.NoError(t, err)

	line := h.callLines(1)[0]
	require.Equal(t, []any{"INFO", 400.0, "invalid_request"}, []any{line["level"], line["status"], line["error"]}, "%s", response)
	require.Contains(t, string(response), `"fields":[{"field":"Upgrade","message":"must be sent over HTTP/1.1"}]`)
}

func TestSocketEndsWithCloseCode(t *testing.T) {
	t.Parallel()
	for name, drain := range map[string]bool{"when its time is up": false, "when the process ends": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				working := make(chan struct{})
				h, server, stop := serveInMemory(t, sayFunction(func(_ context.Context, c *Call) (any, error) {
					close(working)
					time.Sleep(5 * time.Second)
					return json.RawMessage(c.Body), nil
				}))
				web := server.client()
				began := time.Now()
				c := h.dial(web)
				if !drain {
					go func() { time.Sleep(streamTimeout - 2*time.Second); c.send(`{"say":"a"}`) }()
					require.Equal(t, `{"say":"a"}`, c.read(), "the frame in progress gets its response")
					require.Equal(t, streamTimeout+3*time.Second, time.Since(began), "pings have kept the socket open")
					require.Equal(t, websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "the time of this socket is up: connect again at once"}, c.closed())
					stop()
				} else {
					c.send(`{"say":"a"}`)
					<-working
					var ending sync.WaitGroup
					defer ending.Wait()
					ending.Go(stop)
					require.Equal(t, `{"say":"a"}`, c.read(), "the frame in progress gets its response")
					require.Equal(t, websocket.CloseError{Code: websocket.StatusGoingAway, Reason: "this instance ends: connect again at once"}, c.closed())
					require.Equal(t, 5*time.Second, time.Since(began))
				}
				for _, line := range h.callLines(2) {
					require.Nil(t, line["error"])
				}
				web.CloseIdleConnections()
			})
		})
	}
}

func TestStalledSocketClientIsDisconnected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stopsReading bool
		timeout      time.Duration
		cause        string
	}{"sends no pong": {false, heartbeat + pongTimeout, "no pong"}, "does not read": {true, clientWriteTimeout, "write a frame"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, server, stop := serveInMemory(t, sayFunction(echo))
				began := time.Now()
				conn := server.dial()
				defer conn.Close()
				require.NoError(t, h.request("GET", "/api/v1/stream", "", upgrade).Write(conn))
				go func() { // reads the response to the handshake, and then nothing or all frames; never sends a pong
					buf := make([]byte, 4096)
					for err := error(nil); err == nil && !(c.stopsReading && strings.Contains(string(buf), "\r\n\r\n")); {
						_, err = conn.Read(buf)
					}
				}()
				web := server.client()
				time.Sleep(time.Until(began.Add(c.timeout - time.Millisecond)))
				other := h.dial(web)
				other.send(`{"say":"a"}`)
				require.Contains(t, other.read(), `"a"`, "other sockets are not delayed")
				require.NoError(t, other.conn.Close(websocket.StatusNormalClosure, ""))
				web.CloseIdleConnections()
				synctest.Wait()
				h.callLines(2) // the frame and the socket of other; the stalled socket is not closed early
				time.Sleep(time.Millisecond)
				synctest.Wait()
				line := h.callLines(3)[2]
				require.Equal(t, "client_gone", line["error"])
				require.Contains(t, line["cause"], c.cause)
				stop()
			})
		})
	}
}

func TestSocketIsClosedWhenFunctionFails(t *testing.T) {
	t.Parallel()
	for name, fails := range bugs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serveFunctions(t, HTTP("broken", func(*Env, struct{}) Routes {
				return Routes{"GET /api/v1/stream": WithSocket(Stream(Receiver, waits), nil, func(_ context.Context, _ *Call, _ streamRequest, s *Socket) error {
					if err := s.Open(10, echo); err != nil {
						return err
					}
					if err := s.Send(api.SocketFrame{Event: api.SocketMark}); err != nil {
						return err
					}
					return fails()
				})}
			}))
			_, _, err := h.dial(nil).conn.Read(t.Context())
			require.Error(t, err)
			line := h.callLines(1)[0]
			require.Equal(t, "internal", line["error"])
			require.Contains(t, line["cause"], "bug")
			require.Equal(t, "ERROR", line["level"])
		})
	}
}
