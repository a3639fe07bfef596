package api

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// socketServer accepts each WebSocket and runs serve with the raw connection. If serve is nil, socketServer never responds.
type socketServer struct{ serve func(net.Conn) }

func (s socketServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.serve == nil {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	client, server := net.Pipe()
	go s.serve(server)
	go func() { _, _ = io.Copy(io.Discard, server) }()
	accept := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: client, Request: r, Header: http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Accept": {base64.StdEncoding.EncodeToString(accept[:])},
	}}, nil
}

func TestSocketEndsAfterSilence(t *testing.T) {
	t.Parallel()
	ping, frame := []byte{0x89, 0}, []byte("\x81\x02{}")
	write := func(pause time.Duration, frames ...[]byte) func(net.Conn) {
		return func(c net.Conn) {
			for _, f := range frames {
				time.Sleep(pause)
				_, _ = c.Write(f)
			}
		}
	}
	for name, c := range map[string]struct {
		serve  func(net.Conn)
		slow   time.Duration // between two calls of Next
		opened bool
		frames int
		lasts  time.Duration
	}{
		"no response":           {nil, 0, false, 0, 45 * time.Second},
		"silence":               {write(0), 0, true, 0, 45 * time.Second},
		"a frame, then silence": {write(40*time.Second, frame), 0, true, 1, 85 * time.Second},
		"pings, then a frame":   {write(40*time.Second, ping, ping, frame), 0, true, 1, 165 * time.Second},
		"a slow caller of Next": {write(0, frame, frame), time.Hour, true, 2, 2*time.Hour + 45*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				client := &Client{BaseURL: "http://sendonce.test", HTTP: &http.Client{Transport: socketServer{c.serve}}}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
				defer cancel()
				socket, err := client.Socket(ctx, "ann", StreamRequest{})
				require.Equal(t, c.opened, err == nil)
				frames := 0
				for err == nil {
					if _, err = socket.Next(ctx); err == nil {
						frames++
						time.Sleep(c.slow)
					}
				}
				require.Equal(t, c.frames, frames)
				require.Equal(t, c.lasts, time.Since(started))
				if c.opened {
					require.ErrorContains(t, err, "nothing received for 45s")
				}
			})
		})
	}
}
