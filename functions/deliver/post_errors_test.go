package deliver

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestPostTimeouts(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		scheme   string
		response string
		want     string
	}{
		"no response":      {"http", "", "timed out after 1s"},
		"partial header":   {"http", "HTTP/1.1 200 OK\r\nContent-Le", "timed out after 1s"},
		"no TLS handshake": {"https", "", "timed out after 500ms: no TLS handshake"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := make(chan struct{})
			address := sandbox.ServeTCP(t, func(_ int, conn net.Conn) {
				defer close(closed)
				if tt.response == "" || readRequest(bufio.NewReader(conn)) == nil {
					_, _ = io.WriteString(conn, tt.response)
					readAll(conn)
				}
			})
			a := newLoopbackPoster(t, time.Second).try(t.Context(), tt.scheme+"://"+address)
			require.Equal(t, attempt{at: a.at, duration: a.duration, err: tt.want}, a)
			<-closed
		})
	}
}

func TestPostInvalidResponse(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ response, want string }{
		"header too long":  {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20), "server response headers exceeded 16384 bytes; aborted"},
		"too many headers": {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: x\r\n", 100_000), "server response headers exceeded 16384 bytes; aborted"},
		"another protocol": {"SSH-2.0-OpenSSH\r\n\x00\x1b[31m\r\n", `malformed HTTP response`},
		"quoted length":    {"HTTP/1.1 200 OK\r\nContent-Length: 13800138000\r\nContent-Length: 1380013800 \r\n\r\n", "http: message cannot contain multiple Content-Length headers; got"},
		"bad length":       {"HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n", "bad Content-Length"},
		"bad encoding":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: SECRET\r\n\r\n", "unsupported transfer encoding"},
		"no colon":         {"HTTP/1.1 200 OK\r\nSECRET\r\n\r\n", "malformed MIME header"},
		"indented header":  {"HTTP/1.1 200 OK\r\n SECRET: x\r\n\r\n", "malformed MIME header"},
		"empty":            {"", "the connection was closed before a response"},
		"truncated header": {"HTTP/1.1 200 OK\r\nX: ", "the connection was closed before a response"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := sandbox.ServeTCP(t, func(_ int, conn net.Conn) {
				if readRequest(bufio.NewReader(conn)) == nil {
					_, _ = io.WriteString(conn, tt.response)
				}
			})
			a := newLoopbackPoster(t, time.Minute).try(t.Context(), "http://"+address)
			require.Equal(t, attempt{at: a.at, duration: a.duration, err: tt.want}, a)
		})
	}
}

// The error depends on whether the server or the client writes first.
func TestPostToServerThatDoesNotAwaitRequest(t *testing.T) {
	t.Parallel()
	address := sandbox.ServeTCP(t, func(_ int, conn net.Conn) {
		_, _ = io.WriteString(conn, "SSH-2.0-Test\r\n")
		readAll(conn)
	})
	a := newLoopbackPoster(t, time.Minute).try(t.Context(), "http://"+address)
	require.Contains(t, []string{"the server sent data before the request: it is not an HTTP server", `malformed HTTP response`}, a.err)
	require.Zero(t, a.status)
}

func TestPostTLSErrors(t *testing.T) {
	t.Parallel()
	silence := func(server *httptest.Server) *httptest.Server {
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		return server
	}
	server := silence(httptest.NewUnstartedServer(http.NotFoundHandler()))
	server.StartTLS()
	t.Cleanup(server.Close)
	old := silence(httptest.NewUnstartedServer(http.NotFoundHandler()))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	t.Cleanup(old.Close)
	plain := silence(httptest.NewUnstartedServer(http.NotFoundHandler()))
	plain.Start()
	t.Cleanup(plain.Close)

	roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	tests := map[string]struct {
		url       string
		tlsConfig *tls.Config
		want      string
		status    int
	}{
		"valid":                {server.URL, &tls.Config{RootCAs: roots}, "returned 404 Not Found", 404},
		"an unknown authority": {server.URL, nil, "the certificate is not valid: it is signed by an unknown authority", 0},
		"another host":         {"https://localhost:" + port, &tls.Config{RootCAs: roots}, "the certificate is not valid: it is not for this host", 0},
		"expired":              {server.URL, &tls.Config{RootCAs: roots, Time: func() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }}, "the certificate is not valid: it has expired or is not valid yet", 0},
		"old TLS version":      {old.URL, &tls.Config{RootCAs: roots}, "TLS failed: protocol version not supported", 0},
		"plain HTTP":           {strings.Replace(plain.URL, "http:", "https:", 1), nil, "TLS failed: the server does not use TLS on this port", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newLoopbackPoster(t, time.Minute)
			p.transport.TLSClientConfig = tt.tlsConfig
			a := p.try(t.Context(), tt.url)
			require.Equal(t, tt.want, a.err)
			require.Equal(t, tt.status, a.status)
		})
	}
}

func TestPostErrorHasNoAddress(t *testing.T) {
	t.Parallel()
	private := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 443}
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Addr: private, Err: err} }
	read := func(err error) error {
		return &net.OpError{Op: "read", Net: "tcp", Source: private, Addr: private, Err: err}
	}
	p := newPoster(15*time.Second, nil)
	for want, err := range map[string]error{
		"connection refused":                  dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		"no route to host":                    dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)),
		"timed out after 7.5s: no connection": dial(os.ErrDeadlineExceeded),
		"connection reset by peer":            fmt.Errorf("broken: %w", read(os.NewSyscallError("read", syscall.ECONNRESET))),
		"the server sent data before the request: it is not an HTTP server": errors.New("readLoopPeekFailLocked: %!w(<nil>)"),
		"use of closed network connection":                                  read(net.ErrClosed),
		"TLS failed: handshake failure":                                     &net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")},
		"TLS failed: server selected unsupported protocol version":          errors.New("tls: server selected unsupported protocol version"),
	} {
		require.Equal(t, want, p.describeError(err))
	}
}

func TestPostInvalidRequest(t *testing.T) {
	t.Parallel()
	p := newLoopbackPoster(t, time.Minute)
	require.Equal(t, "the URL is not valid", p.try(t.Context(), "http://%zz").err)
	require.Equal(t, "unsupported protocol scheme", p.try(t.Context(), "file:///etc/passwd").err)

	a := p.post(t.Context(), "http://127.0.0.1:1", "event-1", nil, []string{"whsec_c2hvcnQ="})
	require.Contains(t, a.err, "cannot be signed: secret 1 of 1")
	require.NotContains(t, a.err, "c2hvcnQ")
}
