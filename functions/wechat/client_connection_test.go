package wechat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// failingConn is a connection on which write number failFrom (counted from 1) and all later writes fail after partial bytes.
type failingConn struct {
	net.Conn
	writes, failFrom, partial int
}

func (c *failingConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes < c.failFrom {
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:c.partial])
	return n, errors.Join(err, errors.New("connection broken"))
}

func TestBrokenConnectionIsUnknownOnlyIfBytesWereWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		partial   int
		listening bool
		want      class
	}{
		"nothing written, then a second connection": {0, true, sent},
		"nothing written, then connection refused":  {0, false, away},
		"a part of the request written":             {100, true, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, client, token := newClientWithToken(t)
			client.transport.CloseIdleConnections()
			var dials atomic.Int32
			client.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				dials.Add(1)
				if !c.listening && dials.Load() > 1 {
					return nil, errors.New("connection refused")
				}
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return &failingConn{Conn: conn, failFrom: 2, partial: c.partial}, err
			}
			require.Equal(t, sent, client.send(t.Context(), token, testMessage()).class)
			r := client.send(t.Context(), token, testMessage())
			require.Equal(t, c.want, r.class, r.message)
			delivered := 1
			if c.want == sent {
				delivered = 2
			}
			require.Len(t, w.Delivered(), delivered)
		})
	}
}

func TestTransportDoesNotRepeatRequests(t *testing.T) {
	t.Parallel()
	w := sandbox.NewWeChat(t, sandbox.WeChatOptions{})
	client := newClientOf(t, w)
	require.Equal(t, sent, client.sendWithToken(t, testMessage()).class)
	w.InjectFault(sandbox.WeChatFault{Drop: true, DeliverFirst: true, Times: 1}) // on the connection that was kept
	require.Equal(t, unknown, client.sendWithToken(t, testMessage()).class)
	require.Len(t, w.Sends(), 2)
}

func TestCancelledSendIsNotAwayIfItArrived(t *testing.T) {
	t.Parallel()
	w, client, token := newClientWithToken(t)
	results := map[string]class{}
	for i := range 300 {
		m := testMessage()
		m.OpenID = fmt.Sprint("user", i)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Microsecond)
		results[m.OpenID] = client.send(ctx, token, m).class
		cancel()
	}
	require.Equal(t, sent, client.send(t.Context(), token, testMessage()).class)
	for _, arrived := range w.Sends() {
		require.NotEqual(t, away, results[arrived.OpenID], arrived.OpenID)
	}
	for openID, got := range results {
		require.Contains(t, []class{away, unknown, sent}, got, openID)
	}
}
