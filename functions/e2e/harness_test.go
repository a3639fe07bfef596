package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) {
	if attack := os.Getenv(attackerVariable); attack != "" {
		if err := attackMain(attack); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	sandbox.Main(m)
}

// binary builds functions/sendonce, once for all tests.
func binary(t testing.TB) string {
	t.Helper()
	return sandbox.Build(t, "github.com/sendonce/sendonce/functions/sendonce", false)
}

// server is Sendonce as one caller sees it.
type server struct {
	t              *testing.T
	url            string
	user, password string
	owner          *pgx.Conn // looks into the database itself
	host           host
}

// serve puts all functions on a fresh database, behind a real socket.
func serve(t *testing.T) *server {
	t.Helper()
	url := sandbox.NewDatabase(t)
	return serveHandler(t, handler(t, url)).connect(url)
}

func serveHandler(t *testing.T, h http.Handler) *server {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	return &server{t: t, url: web.URL, user: "admin", password: "secret", host: ownServer}
}

// handler is all functions on a database.
func handler(t *testing.T, url string) http.Handler {
	t.Helper()
	_, h := environment(t, url)
	return h
}

// environment is handler with what the functions share.
func environment(t *testing.T, url string, change ...func(*fn.Config)) (*fn.Env, http.Handler) {
	t.Helper()
	cfg := fn.Config{
		DatabaseURL: url, Username: "admin", Password: "secret", Metrics: "open", EncryptionKeys: sandbox.EncryptionKey, Roles: fn.Roles(sandbox.Roles),
	}
	for _, c := range change {
		c(&cfg)
	}
	env, err := fn.NewEnv(cfg, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	h, err := fn.Handler(env, functions.Catalogue()...)
	require.NoError(t, err)
	return env, h
}

// connect lets the test look into the database itself.
func (s *server) connect(url string) *server {
	owner, err := pgx.Connect(s.t.Context(), url)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = owner.Close(context.Background()) })
	s.owner = owner
	return s
}

// reply is an answer, decoded where it is JSON.
type reply struct {
	t      *testing.T
	status int
	header http.Header
	text   string
	body   map[string]any
}

func (r reply) data(name string) any {
	data, ok := r.body["data"].(map[string]any)
	require.True(r.t, ok, "no data in %d %s", r.status, r.text)
	return data[name]
}

func (r reply) list() []map[string]any {
	items, ok := r.body["data"].([]any)
	require.True(r.t, ok, "no list in %d %s", r.status, r.text)
	list := make([]map[string]any, len(items))
	for i, item := range items {
		list[i] = item.(map[string]any)
	}
	return list
}

func (r reply) fields() []string {
	var names []string
	fields, _ := r.body["fields"].([]any)
	for _, f := range fields {
		names = append(names, f.(map[string]any)["field"].(string))
	}
	return names
}

func (s *server) get(path string) reply        { return s.do("GET", path, "") }
func (s *server) post(path, body string) reply { return s.do("POST", path, body) }

// do makes one call; header holds names and values in turn.
func (s *server) do(method, path, body string, header ...string) reply {
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	req.SetBasicAuth(s.user, s.password)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	if res.StatusCode >= 400 {
		sandbox.CheckLeaks(s.t, "the refusal of "+method+" "+path, string(text))
	}
	r := reply{t: s.t, status: res.StatusCode, header: res.Header, text: string(text)}
	if len(bytes.TrimSpace(text)) > 0 {
		require.NoError(s.t, json.Unmarshal(text, &r.body), "%d %s", r.status, text)
	}
	return r
}

// caller makes a caller with one role and its queues, and acts as it.
func (s *server) caller(name, role string, queues ...string) *server {
	made := s.post("/api/v1/admin/callers", fmt.Sprintf(`{"name":%q,"roles":[%q],"queues":%s}`, name, role, jsonList(queues)))
	require.Equal(s.t, 200, made.status, made.text)
	as := *s
	as.user, as.password = name, made.data("token").(string)
	return &as
}

func jsonList(values []string) string {
	if len(values) == 0 {
		return "[]"
	}
	return `["` + strings.Join(values, `","`) + `"]`
}

func (s *server) exec(sql string, args ...any) {
	_, err := s.owner.Exec(context.Background(), sql, args...)
	require.NoError(s.t, err)
}

func (s *server) count(sql string, args ...any) int {
	var n int
	require.NoError(s.t, s.owner.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// lastStatement is when the functions last asked this database anything.
func (s *server) lastStatement() time.Time {
	var at time.Time
	require.NoError(s.t, s.owner.QueryRow(context.Background(),
		`select coalesce(max(state_change), 'epoch') from pg_stat_activity where usename = 'sendonce_hot' and datname = current_database()`).Scan(&at))
	return at
}

// waiting makes a claim that finds nothing and returns once it waits.
func (s *server) waiting(path string) <-chan reply {
	s.get("/api/v1/sms/tasks/pending?app_id=warm-up&wait=1") // prepares the statements, which looks like asking
	before := s.lastStatement()
	answer := make(chan reply, 1)
	go func() { answer <- s.get(path) }()
	s.untilWaiting(before)
	return answer
}

// untilWaiting returns when a claim that began after before waits: the last
// that it asks is whether its queue is paused.
func (s *server) untilWaiting(before time.Time) {
	require.Eventually(s.t, func() bool {
		return s.count(`select count(*) from pg_stat_activity where usename = 'sendonce_hot' and datname = current_database()
			and state = 'idle' and state_change > $1 and query like '%from queue_pauses where queue = $1'`, before) > 0
	}, waitLimit, time.Millisecond)
}
