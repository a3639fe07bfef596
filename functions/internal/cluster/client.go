package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// Paths that tests of several functions call.
const (
	AdminPath         = "/api/v1/admin/"
	MessagesPath      = "/api/v1/messages"
	StreamsPath       = "/api/v1/stream/"
	EndpointsPath     = "/api/v1/webhooks/endpoints"
	DeliveriesPath    = "/api/v1/webhooks/deliveries"
	SigningSecretPath = "/api/v1/webhooks/signing-secret"
)

// Client calls Sendonce as one caller.
type Client struct {
	T              *testing.T
	URL            string
	User, Password string
	Owner          *pgx.Conn // connection as the owner of the database; nil before Connect
	Host           Host      // what serves the functions at URL; set by Host.At and ServeHandler, otherwise zero
}

// Host is a kind of server that serves all functions: OwnServer or Framework.
type Host struct {
	Name string
	// start starts the server and returns its URL. natsURL is "" for none; with NATS, two-phase acknowledgements are enabled.
	start func(t *testing.T, databaseURL, natsURL string) string
}

// NewClient returns a client that calls the functions at a URL as the built-in admin.
func NewClient(t *testing.T, url string) *Client {
	return &Client{T: t, URL: url, User: "admin", Password: "secret"}
}

// Connect lets the test read and change the database directly, as its owner.
func (s *Client) Connect(databaseURL string) *Client {
	s.T.Helper()
	owner, err := pgx.Connect(s.T.Context(), databaseURL)
	require.NoError(s.T, err)
	s.T.Cleanup(func() { _ = owner.Close(context.Background()) })
	s.Owner = owner
	return s
}

// Reply is a response, decoded if it is JSON.
type Reply struct {
	T      *testing.T
	Status int
	Header http.Header
	Text   string
	Body   map[string]any
}

// Data returns one field of "data", which must be an object.
func (r Reply) Data(name string) any {
	r.T.Helper()
	data, ok := r.Body["data"].(map[string]any)
	require.True(r.T, ok, "no data in %d %s", r.Status, r.Text)
	return data[name]
}

// List returns "data", which must be a list of objects.
func (r Reply) List() []map[string]any {
	r.T.Helper()
	items, ok := r.Body["data"].([]any)
	require.True(r.T, ok, "no list in %d %s", r.Status, r.Text)
	return objects(items)
}

// RequireOK requires that the status is 200, and returns the reply.
func (r Reply) RequireOK() Reply {
	r.T.Helper()
	require.Equal(r.T, 200, r.Status, r.Text)
	return r
}

// Items returns the items of a page, which must be objects.
func (r Reply) Items() []map[string]any {
	r.T.Helper()
	items, ok := r.Data("items").([]any)
	require.True(r.T, ok, "no items in %d %s", r.Status, r.Text)
	return objects(items)
}

func objects(list []any) []map[string]any {
	all := make([]map[string]any, len(list))
	for i, item := range list {
		all[i] = item.(map[string]any)
	}
	return all
}

// Values returns one field of each item of a page.
func (r Reply) Values(field string) (values []any) {
	r.T.Helper()
	for _, item := range r.RequireOK().Items() {
		values = append(values, item[field])
	}
	return values
}

// Fields returns the names of the fields that a 4xx refuses.
func (r Reply) Fields() []string {
	var names []string
	fields, _ := r.Body["fields"].([]any)
	for _, f := range fields {
		names = append(names, f.(map[string]any)["field"].(string))
	}
	return names
}

func (s *Client) Get(path string) Reply        { s.T.Helper(); return s.Do("GET", path, "") }
func (s *Client) Post(path, body string) Reply { s.T.Helper(); return s.Do("POST", path, body) }

// Pages reads all pages of a list, with one item each, and returns one field of the items. path has a query or ends with "?".
func (s *Client) Pages(path, field string) (values []any) {
	s.T.Helper()
	for next := ""; ; {
		page := s.Get(path + "&limit=1" + next)
		values = append(values, page.Values(field)...)
		after, more := page.Data("next_after").(string)
		if !more {
			return values
		}
		next = "&after=" + url.QueryEscape(after)
	}
}

// Request returns a request of the caller. header has names and values alternately.
func (s *Client) Request(ctx context.Context, method, path, body string, header ...string) *http.Request {
	s.T.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	require.NoError(s.T, err)
	req.SetBasicAuth(s.User, s.Password)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// Do makes one call. header has names and values alternately.
func (s *Client) Do(method, path, body string, header ...string) Reply {
	s.T.Helper()
	res, err := http.DefaultClient.Do(s.Request(context.Background(), method, path, body, header...))
	require.NoError(s.T, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(s.T, err)
	if res.StatusCode >= 400 {
		sandbox.CheckLeaks(s.T, "the response to "+method+" "+path, string(text))
	}
	r := Reply{T: s.T, Status: res.StatusCode, Header: res.Header, Text: string(text)}
	if len(bytes.TrimSpace(text)) > 0 {
		require.NoError(s.T, json.Unmarshal(text, &r.Body), "%d %s", r.Status, text)
	}
	return r
}

// TickHeader has the header of a tick event for Do: names and values alternately.
var TickHeader = []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "test", "Ce-Type", "tick"}

// Tick calls an event function directly, as a platform's timer would.
func (s *Client) Tick(function string) Reply {
	s.T.Helper()
	return s.Do("POST", "/events/"+function, `{}`, TickHeader...)
}

// NewMessageReceiver creates a caller that may confirm messages to subjects of these patterns, and returns its client. The caller's
// password is its name.
func (s *Client) NewMessageReceiver(name string, patterns ...string) *Client {
	s.T.Helper()
	hash := sha256.Sum256([]byte(name))
	s.Exec(`insert into callers (name, token_hash, roles, queues, receives) values ($1, $2, '{receiver}', '{}', $3)`,
		name, hash[:], append([]string{}, patterns...))
	as := *s
	as.User, as.Password = name, name
	return &as
}

// Exec runs a statement in the database, as its owner.
func (s *Client) Exec(sql string, args ...any) {
	s.T.Helper()
	_, err := s.Owner.Exec(context.Background(), sql, args...)
	require.NoError(s.T, err)
}

// Count reads one number from the database.
func (s *Client) Count(sql string, args ...any) int {
	s.T.Helper()
	var n int
	require.NoError(s.T, s.Owner.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// WaitCount waits until Count returns n.
func (s *Client) WaitCount(n int, sql string, args ...any) {
	s.T.Helper()
	Eventually(s.T, func() bool { return s.Count(sql, args...) == n }, sql)
}

// QueryText reads one text from the database.
func (s *Client) QueryText(sql string, args ...any) string {
	s.T.Helper()
	var text string
	require.NoError(s.T, s.Owner.QueryRow(context.Background(), sql, args...).Scan(&text))
	return text
}

// LastStatementAt returns when a session of the role sendonce_hot last began or ended a statement in this database.
func (s *Client) LastStatementAt() time.Time {
	s.T.Helper()
	var at time.Time
	require.NoError(s.T, s.Owner.QueryRow(context.Background(),
		`select coalesce(max(state_change), 'epoch') from pg_stat_activity where usename = 'sendonce_hot' and datname = current_database()`).Scan(&at))
	return at
}

// StartWaiting sends a claim for which there is no task, and returns when the claim waits.
func (s *Client) StartWaiting(path string) <-chan Reply {
	s.T.Helper()
	s.Get("/api/v1/sms/tasks/pending?app_id=warm-up&wait=1") // prepares the statements of a claim: preparing them later would count as a statement
	return s.StartWaitingToo(path)
}

// StartWaitingToo is StartWaiting for a further claim on the same process, which has already prepared the statements.
func (s *Client) StartWaitingToo(path string) <-chan Reply {
	s.T.Helper()
	since := s.LastStatementAt()
	response := make(chan Reply, 1)
	go func() { response <- s.Get(path) }()
	s.UntilWaiting(since)
	return response
}

// UntilWaiting returns when a claim that began after since waits for a task. The last statement before the wait reads
// whether the queue is paused. UntilWaiting queries every millisecond, because Postgres shows only the last statement
// of a session, and the session may soon run a statement of another call.
func (s *Client) UntilWaiting(since time.Time) {
	s.T.Helper()
	eventually(s.T, time.Millisecond, func() bool {
		return s.Count(`select count(*) from pg_stat_activity where usename = 'sendonce_hot' and datname = current_database()
			and state = 'idle' and state_change > $1 and query like '%from queue_pauses where queue = $1'`, since) > 0
	}, "the claim waits")
}
