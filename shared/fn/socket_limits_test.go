package fn

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

func TestFramesOfOneCallerWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	var begun atomic.Int64
	release := make(chan struct{})
	h := serveFunctions(t, sayFunction(func(_ context.Context, c *Call) (any, error) {
		if c.Caller.Name == "submitter" {
			begun.Add(1)
			<-release
		}
		return json.RawMessage(c.Body), nil
	}))
	heldOrWaiting := func() int {
		h.env.frames.mu.Lock()
		defer h.env.frames.mu.Unlock()
		if s := h.env.frames.byCaller["submitter"]; s != nil {
			return s.users
		}
		return 0
	}
	sockets := make([]*client, 2*framesAtOnce)
	for i := range sockets {
		sockets[i] = h.dial(nil, as("submitter", "token"))
		sockets[i].send(`{"say":"a"}`)
	}
	require.Eventually(t, func() bool { return heldOrWaiting() == len(sockets) && begun.Load() == framesAtOnce }, waitAtMost, tick)
	neighbour := h.dial(nil, as("receiver", "token"))
	neighbour.send(`{"say":"b"}`)
	require.JSONEq(t, `{"say":"b"}`, neighbour.read(), "others do not wait")
	require.EqualValues(t, framesAtOnce, begun.Load())
	close(release)
	for _, s := range sockets {
		require.JSONEq(t, `{"say":"a"}`, s.read(), "nothing is refused")
	}
	require.Eventually(t, func() bool {
		h.env.frames.mu.Lock()
		defer h.env.frames.mu.Unlock()
		return len(h.env.frames.byCaller) == 0
	}, waitAtMost, tick, "callers without frames have no entry")
}

// Too many pings, pongs or parts of a message end the socket with 1008.
func TestFloodOfPingsOrPartsEndsSocket(t *testing.T) {
	t.Parallel()
	const empty = "\x80mask" // the rest of an RFC 6455 frame after its first byte: length 0 and the masking key
	for name, c := range map[string]struct{ first, repeated, reason string }{
		"pings":                                {"", "\x89" + empty, errControls.Error()},
		"pongs":                                {"", "\x8a" + empty, errControls.Error()},
		"parts":                                {"\x01" + empty, "\x00" + empty, errParts.Error()},
		"pings between the parts of a message": {"\x01" + empty, "\x89" + empty, errControls.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serveFunctions(t, sayFunction(echo))
			neighbour := h.dial(nil, as("receiver", "token"))
			attacker, raw := h.dialWithConn(as("submitter", "token"))
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, err := raw.Write([]byte(c.first))
				for many := bytes.Repeat([]byte(c.repeated), 1000); err == nil; {
					_, err = raw.Write(many)
				}
			}()
			require.Equal(t, websocket.CloseError{Code: websocket.StatusPolicyViolation, Reason: c.reason}, attacker.closed())
			<-sent
			neighbour.send(`{"client_msg_id":"1","say":"b"}`)
			require.Contains(t, neighbour.read(), `"b"`, "others go on")
		})
	}
}

// dialWithConn is dial that also returns the connection of the socket.
func (h *testServer) dialWithConn(options ...func(*http.Request)) (c *client, raw net.Conn) {
	h.t.Helper()
	c = h.dial(&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		raw, err = new(net.Dialer).DialContext(ctx, network, address)
		return raw, err
	}}}, options...)
	return c, raw
}

// The memory of an incomplete message is released, however the message ends.
func TestIncompleteMessageReleasesMemory(t *testing.T) {
	t.Parallel()
	const begun, end = "\x81\xfe\x01\x00mask0123456789", "\x88\x80mask"
	for name, sent := range map[string]string{
		"within a part":        begun,
		"between parts":        "\x01\x82maskab",
		"by a close":           "\x01\x82maskab" + end,
		"by an unknown opcode": "\x01\x82maskab\x83\x80mask",
		"by too many parts":    "\x01\x80mask" + strings.Repeat("\x00\x80mask", 20_000),
		"by too many pings":    "\x01\x80mask" + strings.Repeat("\x89\x80mask", maxControls+1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serveFunctions(t, sayFunction(echo))
			_, raw := h.dialWithConn(as("submitter", "token"))
			_, _ = raw.Write([]byte(sent)) // fails if the service ends the socket first
			_ = raw.(*net.TCPConn).CloseWrite()
			require.Eventually(t, func() bool { return h.env.limiter.countInFlight() == 0 }, waitAtMost, tick, "the socket has ended")
			require.Zero(t, h.env.budget.inUse())
			neighbour := h.dial(nil, as("receiver", "token"))
			neighbour.send(`{"say":"b"}`)
			require.Contains(t, neighbour.read(), `"b"`, "others go on")
		})
	}
}

func TestPingsUpToLimitGetPongs(t *testing.T) {
	t.Parallel()
	h := serveFunctions(t, sayFunction(echo))
	c := h.dial(nil)
	ctx := c.conn.CloseRead(t.Context())
	for range maxControls {
		require.NoError(t, c.conn.Ping(ctx))
	}
	require.Error(t, c.conn.Ping(ctx), "one ping more ends the socket")
}
