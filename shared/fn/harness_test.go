package fn

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/auth/authtest"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// testServer serves functions to callers that need no database.
type testServer struct {
	t   *testing.T
	env *Env
	url string
	log *sandbox.LogBuffer
}

// newTestServer returns a server without functions, which does not listen.
func newTestServer(t *testing.T, change func(*settings.Config)) *testServer {
	t.Helper()
	h := &testServer{t: t, log: &sandbox.LogBuffer{}}
	cfg := settings.Config{Username: "admin", Password: "secret", Metrics: settings.MetricsForAll}
	if change != nil {
		change(&cfg)
	}
	var err error
	h.env, err = NewEnv(cfg, slog.New(slog.NewJSONHandler(h.log, nil)))
	require.NoError(t, err)
	h.setCallers(knownCallers)
	h.env.databaseProbe = newDatabaseProbe(func(context.Context) error { return nil })
	return h
}

func startServer(t *testing.T, change func(*settings.Config), functions ...Function) *testServer {
	t.Helper()
	h := newTestServer(t, change)
	handler, err := Handler(h.env, functions...)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

// setCallers replaces the source of callers.
func (h *testServer) setCallers(find authtest.Source) {
	h.env.auth = auth.New(h.env.Config.Username, h.env.Config.Password, h.adminHash(), find, nil, h.env.Log)
}

func (h *testServer) adminHash() *auth.PasswordHash {
	if h.env.Config.PasswordHash == "" {
		return nil
	}
	hash, err := auth.ParsePasswordHash(h.env.Config.PasswordHash)
	require.NoError(h.t, err)
	return hash
}

// knownCallers has a caller for each of these roles. Its name is the role, and its token is "token".
var knownCallers = authtest.Callers("token", string(Submitter), string(Sender), string(Receiver), string(Trigger))

type reply struct {
	status int
	header http.Header
	body   string
	closes bool // the response has the header Connection: close
	api.Envelope
}

// request returns a request of the built-in admin. The options may change it.
func (h *testServer) request(method, path, body string, options ...func(*http.Request)) *http.Request {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, strings.NewReader(body))
	require.NoError(h.t, err)
	r.SetBasicAuth("admin", "secret")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, option := range options {
		option(r)
	}
	return r
}

func (h *testServer) call(method, path, body string, options ...func(*http.Request)) reply {
	h.t.Helper()
	return send(h.t, h.request(method, path, body, options...))
}

func send(t *testing.T, r *http.Request) reply {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	response := reply{status: res.StatusCode, header: res.Header, body: string(body), closes: res.Close}
	if len(body) > 0 && strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		require.NoError(t, json.Unmarshal(body, &response.Envelope), "%s", body)
	}
	return response
}

func as(name, password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(name, password) }
}

func anonymous(r *http.Request) { r.Header.Del("Authorization") }

// authorization returns a header line, for requests that tests write as text.
func authorization(name, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password)) + "\r\n"
}

var adminLine = authorization("admin", "secret")

// header sets headers, given as names and values in turn.
func header(pairs ...string) func(*http.Request) {
	return func(r *http.Request) {
		for pair := range slices.Chunk(pairs, 2) {
			r.Header.Set(pair[0], pair[1])
		}
	}
}

// callLines returns the log lines of calls. It waits until there are n lines, because a line is written
// after the response. More than n lines are an error.
func (h *testServer) callLines(n int) []map[string]any {
	h.t.Helper()
	var calls []map[string]any
	require.Eventually(h.t, func() bool {
		calls = nil
		for line := range strings.Lines(h.log.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == "call" {
				calls = append(calls, fields)
			}
		}
		return len(calls) >= n
	}, waitAtMost, tick, "%d call lines", n)
	require.Len(h.t, calls, n)
	return calls
}

// rawConn is a connection over which a test sends raw text.
type rawConn struct {
	t         *testing.T
	conn      net.Conn
	responses *bufio.Reader
}

func (h *testServer) dialRaw(t *testing.T) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(waitAtMost)))
	return &rawConn{t, conn, bufio.NewReader(conn)}
}

func (w *rawConn) send(text string) {
	w.t.Helper()
	_, err := io.WriteString(w.conn, text)
	require.NoError(w.t, err)
}

// sendLast sends text, closes the sending side, and returns what the server sends until the server closes the
// connection.
func (w *rawConn) sendLast(text string) string {
	w.t.Helper()
	w.send(text)
	require.NoError(w.t, w.conn.(*net.TCPConn).CloseWrite())
	response, err := io.ReadAll(w.responses)
	require.NoError(w.t, err)
	return string(response)
}

// response reads a whole response.
func (w *rawConn) response() *http.Response {
	w.t.Helper()
	res, err := http.ReadResponse(w.responses, nil)
	require.NoError(w.t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(w.t, err)
	return res
}

func (w *rawConn) status() int { w.t.Helper(); return w.response().StatusCode }
