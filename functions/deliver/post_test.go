package deliver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// newLoopbackPoster returns a poster that may connect to 127.0.0.1.
func newLoopbackPoster(t *testing.T, timeout time.Duration) *poster {
	t.Helper()
	p := newPoster(timeout, networks(t, "127.0.0.1"))
	t.Cleanup(p.transport.CloseIdleConnections)
	return p
}

// try posts a small event.
func (p *poster) try(ctx context.Context, url string) attempt {
	return p.post(ctx, url, "event-1", []byte(`{"a":1}`), []string{api.NewWebhookSecret()})
}

func newReceiver(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

// readRequest reads a whole request: a connection that is closed with unread bytes would be reset.
func readRequest(from *bufio.Reader) error {
	r, err := http.ReadRequest(from)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

// readAll returns when the other side has closed the connection.
func readAll(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func TestPostIsSigned(t *testing.T) {
	t.Parallel()
	oldSecret, newSecret := api.NewWebhookSecret(), api.NewWebhookSecret()
	body := []byte(`{"specversion":"1.0"}`)
	got := make(chan *http.Request, 1)
	server := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err == nil {
			err = api.VerifyWebhook(r.Header, raw, time.Now(), oldSecret)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		got <- r
		fmt.Fprint(w, "thank\n  you\x00")
	})

	start := time.Now()
	a := newLoopbackPoster(t, time.Minute).post(t.Context(), server.URL+"/hook?a=b", "event-1", body, []string{newSecret, oldSecret})
	require.Equal(t, attempt{at: a.at, duration: a.duration, status: 200, response: "thank you"}, a)
	require.False(t, a.at.Before(start))
	require.Positive(t, a.duration)
	require.LessOrEqual(t, a.duration, time.Since(start))

	r := <-got
	require.Equal(t, "POST /hook?a=b", r.Method+" "+r.URL.String())
	require.Equal(t, fmt.Sprint(a.at.Unix()), r.Header.Get("webhook-timestamp"))
	r.Header.Del("webhook-signature")
	require.Equal(t, http.Header{
		"User-Agent":        {"Sendonce"},
		"Content-Type":      {contentType},
		"Content-Length":    {fmt.Sprint(len(body))},
		"Webhook-Id":        {"event-1"},
		"Webhook-Timestamp": {fmt.Sprint(a.at.Unix())},
	}, r.Header)
}

func TestPostSucceedsOnlyWith2xx(t *testing.T) {
	t.Parallel()
	p := newLoopbackPoster(t, time.Minute)
	for status, want := range map[int]string{
		200: "", 202: "", 204: "", 299: "",
		300: "returned 300 and redirects are not followed: register the new URL",
		304: "returned 304 and redirects are not followed: register the new URL",
		400: "returned 400 Bad Request",
		410: "returned 410 Gone",
		429: "returned 429 Too Many Requests",
		503: "returned 503 Service Unavailable",
		599: "returned 599",
	} {
		server := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(status)
		})
		a := p.try(t.Context(), server.URL)
		require.Equal(t, attempt{at: a.at, duration: a.duration, status: status, err: want, retryAfter: 2 * time.Minute}, a)
	}
}

func TestPostFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	target := newReceiver(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	p := newLoopbackPoster(t, time.Minute)
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, location := range []string{target.URL, "/elsewhere", "http://169.254.169.254/", "%zz:// no URL"} {
			var requests atomic.Int32
			server := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Location", location)
				w.WriteHeader(status)
			})
			a := p.try(t.Context(), server.URL)
			require.Equal(t, status, a.status, location)
			require.Equal(t, fmt.Sprintf("returned %d and redirects are not followed: register the new URL", status), a.err)
			require.EqualValues(t, 1, requests.Load())
		}
	}
	require.Zero(t, reached.Load())
}

func TestPostRefusesAddressesThatAreNotPublic(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(net.Conn, http.ConnState) { reached.Add(1) }
	server.Start()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)

	p := newPoster(time.Minute, networks(t, "10.0.0.0/8"))
	t.Cleanup(p.transport.CloseIdleConnections)
	var all sync.WaitGroup
	for _, host := range []string{"localhost", "LOCALHOST", "127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"} {
		for _, scheme := range []string{"http://", "https://"} {
			all.Go(func() {
				a := p.try(t.Context(), scheme+host+":"+port)
				assert.Equal(t, attempt{at: a.at, duration: a.duration, err: errNotPublic.Error()}, a, host)
			})
		}
	}
	all.Wait()
	require.Zero(t, reached.Load())
}

func TestPostUsesNoProxy(t *testing.T) {
	t.Parallel()
	require.Nil(t, newLoopbackPoster(t, time.Minute).transport.Proxy)
}

func TestPostLimitsTheResponseBody(t *testing.T) {
	t.Parallel()
	sent := make(chan int, 1)
	chunk := []byte(strings.Repeat("很长", 4<<10))
	server := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		total := 0
		for {
			n, err := w.Write(chunk)
			total += n
			if err != nil {
				sent <- total
				return
			}
		}
	})
	a := newLoopbackPoster(t, time.Minute).try(t.Context(), server.URL)
	require.Equal(t, attempt{at: a.at, duration: a.duration, status: 200, response: strings.Repeat("很长", 100)}, a)
	require.Less(t, <-sent, 64<<20, "no more was sent than the buffers of two sockets hold")
}

func TestPostKeepsTheStatusOfASlowBody(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	server := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(closed)
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, "slow")
		if http.NewResponseController(w).Flush() == nil {
			<-r.Context().Done()
		}
	})
	a := newLoopbackPoster(t, time.Second).try(t.Context(), server.URL)
	require.Equal(t, attempt{at: a.at, duration: a.duration, status: 202, response: "slow"}, a)
	<-closed
}

func TestCancelledPost(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 2)
	address := sandbox.ServeTCP(t, func(_ int, conn net.Conn) {
		if readRequest(bufio.NewReader(conn)) == nil {
			arrived <- struct{}{}
			readAll(conn)
		}
	})
	p := newLoopbackPoster(t, time.Minute)

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	a := p.try(ctx, "http://"+address)
	require.Equal(t, attempt{at: a.at, duration: a.duration, cancelled: true, err: "interrupted before a response"}, a)

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.True(t, p.try(short, "http://"+address).cancelled)
	require.True(t, p.try(ctx, "http://"+address).cancelled)
}

// A shortage of this process must use up no send of a message, and no try of a delivery.
func TestPostWithoutFreeFilesIsCancelled(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"connection": &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)},
		"lookup":     &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Name: "shop", Err: "dial udp 127.0.0.1:53: socket: " + syscall.EMFILE.Error()}},
	} {
		p := newLoopbackPoster(t, time.Minute)
		p.transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, failure }
		a := p.try(t.Context(), "http://127.0.0.1:1")
		require.True(t, a.cancelled, name)
		require.Equal(t, message.Unavailable, a.result().Outcome, name)
		require.Contains(t, a.err, "too many open files", name)
	}
}

// countConnections starts a receiver that counts opened and closed connections.
func countConnections(t *testing.T, h http.HandlerFunc) (server *httptest.Server, opened, closed *atomic.Int32) {
	t.Helper()
	opened, closed = new(atomic.Int32), new(atomic.Int32)
	server = httptest.NewUnstartedServer(h)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server, opened, closed
}

func TestPostReusesConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		length      int
		connections int32
	}{{0, 1}, {excerptBytes, 1}, {drainBytes, 1}, {drainBytes + 1, 5}, {1 << 20, 5}} {
		t.Run(fmt.Sprint(tt.length), func(t *testing.T) {
			t.Parallel()
			body := strings.Repeat("x", tt.length)
			server, opened, closed := countConnections(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				_, _ = io.WriteString(w, body)
			})
			p := newLoopbackPoster(t, time.Minute)
			for range 5 {
				require.Equal(t, 200, p.try(t.Context(), server.URL).status)
			}
			require.Equal(t, tt.connections, opened.Load())
			p.transport.CloseIdleConnections()
			require.Eventually(t, func() bool { return closed.Load() == tt.connections }, time.Minute, 10*time.Millisecond)
		})
	}
}

func TestPostIsRepeatedIfReusedConnectionCloses(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	address := sandbox.ServeTCP(t, func(n int, conn net.Conn) {
		from := bufio.NewReader(conn)
		for served := 0; ; served++ {
			if readRequest(from) != nil {
				return
			}
			requests.Add(1)
			if n == 1 && served == 1 {
				return // closes the connection after the request was sent
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	p := newLoopbackPoster(t, time.Minute)
	require.Equal(t, 204, p.try(t.Context(), "http://"+address).status)
	require.Equal(t, 204, p.try(t.Context(), "http://"+address).status)
	require.EqualValues(t, 3, requests.Load())
}
