package main

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestConnectionLimitKeepsCompleteCalls(t *testing.T) {
	t.Parallel()
	began, received, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	server := httpserver.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := newBoundedCall(w, r)
		defer call.end()
		began <- struct{}{}
		if _, err := io.ReadAll(r.Body); err != nil {
			return
		}
		received <- struct{}{}
		<-release
		call.WriteHeader(http.StatusNoContent)
	}), 3, nil)
	listener, err := listenLocally(t.Context(), 0)
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }() // until Close
	t.Cleanup(func() { _ = server.Close() })
	dial := func(text string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = io.WriteString(conn, text)
		require.NoError(t, err)
		return conn
	}
	var complete []net.Conn
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"} {
		complete = append(complete, dial(text))
		<-began
		<-received
	}
	half := dial("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
	<-began
	idle := dial("")
	dial("")
	for _, closed := range []net.Conn{half, idle} {
		_, err := io.ReadAll(closed)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server must close the connection")
	}
	close(release)
	for _, conn := range complete {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
	}
}

// After the proxy has sent the whole body, it reads the body once more. net/http may have closed the body before. An
// error of this last read would cut off the response.
func TestBodyIsAtItsEndAfterResponse(t *testing.T) {
	t.Parallel()
	again := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := newBoundedCall(w, r)
		defer call.end()
		_, err := io.Copy(io.Discard, r.Body)
		call.WriteHeader(http.StatusOK)
		err = cmp.Or(err, http.NewResponseController(call).Flush())
		_, readErr := r.Body.Read(make([]byte, 1))
		again <- cmp.Or(err, readErr)
	}))
	t.Cleanup(server.Close)
	res, err := server.Client().Post(server.URL, "text/plain", strings.NewReader("body"))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, io.EOF, <-again)
}

// If the client of a WebSocket does not read, the server closes the WebSocket after a time. Until then the WebSocket
// counts as a connection.
func TestHijackedConnectionIsBounded(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	hijacked, ended := make(chan struct{}), make(chan error, 1)
	server := httpserver.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := newBoundedCall(w, r)
		defer call.end()
		if r.URL.Path != "/socket" {
			return
		}
		conn, _, err := http.NewResponseController(call).Hijack()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		close(hijacked)
		part := make([]byte, 32<<10)
		for err == nil {
			_, err = conn.Write(part)
		}
		ended <- err
	}), 1, nil)
	listener, err := listenLocally(t.Context(), 0)
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }() // until Close
	t.Cleanup(func() { _ = server.Close() })
	h := testRun{port: listener.Addr().(*net.TCPAddr).Port}
	_ = h.rawCall(t, "GET /socket HTTP/1.1\r\nHost: x\r\n\r\n")
	<-hijacked
	status, _ := h.rawCall(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")()
	require.Zero(t, status, "the limit is one connection")
	select {
	case err = <-ended:
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	case <-time.After(30 * time.Second):
		t.Fatal("the write has no deadline")
	}
	require.Eventually(t, func() bool {
		status, _ := h.rawCall(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")()
		return status == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
}
