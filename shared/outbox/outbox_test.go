package outbox

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) {
	if os.Getenv(forwarderDatabase) != "" {
		runForwarderProcess()
		return
	}
	sandbox.Main(m)
}

// database creates the database of a sending service: the outbox and a table of orders.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), sandbox.NewEmptyDatabase(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	exec(t, pool, DDL)
	exec(t, pool, "CREATE TABLE orders (id int PRIMARY KEY)")
	return pool
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func count(t *testing.T, db *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM "+sql, args...).Scan(&n))
	return n
}

// put commits n messages and returns their ids.
func put(t *testing.T, db *pgxpool.Pool, n int) []string {
	t.Helper()
	var ids []string
	require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for i := range n {
			id, err := Put(t.Context(), tx, Message{RoutingKey: "order.paid", Data: i})
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	}))
	return ids
}

// fakeService imitates a Sendonce service: it stores each message once and counts the POSTs.
type fakeService struct {
	*httptest.Server
	mu             sync.Mutex
	posts          []string                    // client_msg_id of each POST
	stored         map[string]string           // client_msg_id -> body
	reply          func(id string, n int) int  // the status of the n-th POST of id, 0 = store it; nil = store all
	beforeResponse func(w http.ResponseWriter) // nil = nothing
	fields         []api.Field                 // of each refusal
}

func newFakeService(t *testing.T) *fakeService {
	t.Helper()
	s := &fakeService{stored: map[string]string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *fakeService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var raw json.RawMessage
	var body struct {
		ClientMsgID string `json:"client_msg_id"`
	}
	user, password, _ := r.BasicAuth()
	if r.Method+r.URL.Path != "POST/api/v1/messages" || r.Header.Get("Content-Type") != "application/json" || user+password != "ordersecret" ||
		json.NewDecoder(r.Body).Decode(&raw) != nil || json.Unmarshal(raw, &body) != nil {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	status := s.store(body.ClientMsgID, string(raw))
	if s.beforeResponse != nil {
		s.beforeResponse(w)
	}
	respond(w, body.ClientMsgID, status, s.fields)
}

func (s *fakeService) store(id, body string) (status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts = append(s.posts, id)
	if s.reply != nil {
		n := 0
		for _, p := range s.posts {
			if p == id {
				n++
			}
		}
		if status := s.reply(id, n); status != 0 {
			return status
		}
	}
	if before, ok := s.stored[id]; ok && before != body {
		return http.StatusUnprocessableEntity
	}
	s.stored[id] = body
	return http.StatusOK
}

// respond writes a response as the service does.
func respond(w http.ResponseWriter, id string, status int, fields []api.Field) {
	envelope := api.Envelope{Code: status, Message: "success", Data: api.MessageAck{ClientMsgID: id}}
	if status >= 300 {
		envelope.Message, envelope.Error = "bad \x00 luck", "some_word"
		envelope.Fields, envelope.Data = fields, nil
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(envelope)
}

func (s *fakeService) counts() (posts, stored int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.posts), len(s.stored)
}

func (s *fakeService) forwarder(db *pgxpool.Pool) *Forwarder {
	return NewForwarder(db, api.NewClient(s.URL, "order", "secret"), slog.New(slog.DiscardHandler))
}

func TestPut(t *testing.T) {
	t.Parallel()

	t.Run("a rolled back message is never sent", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "INSERT INTO orders VALUES (1)")
		require.NoError(t, err)
		_, err = Put(t.Context(), tx, Message{To: "user:anna", Data: "paid"})
		require.NoError(t, err)

		n, err := service.forwarder(db).Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, n, "not before the commit")
		require.NoError(t, tx.Rollback(t.Context()))
		n, err = service.forwarder(db).Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		posts, _ := service.counts()
		require.Zero(t, posts)
	})

	t.Run("the request has all fields unchanged", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		confirm := false
		var id string
		require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
			id, err = Put(t.Context(), tx, Message{
				From: "orders", ExchangeName: "shop", RoutingKey: "order.paid", Type: "paid", Confirm: &confirm, MaxSends: 7, ExpectedReceipts: 1,
				Data: json.RawMessage(`{"b":1.10,"a":12345678901234567890,"b":1e2}`), SentAt: time.Date(2026, 1, 2, 4, 4, 5, 0, time.FixedZone("", 3600)),
			})
			return err
		}))
		_, err := service.forwarder(db).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, `{"client_msg_id":"`+id+`","from":"orders","exchange_name":"shop","routing_key":"order.paid","type":"paid",`+
			`"sent_at":"2026-01-02T03:04:05Z","confirm":false,"max_sends":7,"expected_receipts":1,`+
			`"data":{"b":1.10,"a":12345678901234567890,"b":1e2},"ack":"saved"}`, service.stored[id])
	})

	t.Run("an invalid message is rejected and leaves the transaction usable", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			no := false
			const (
				tooManySends = "max_sends must be between 1 and 20"
				deep         = "data must not be nested deeper than 20 levels"
				nul          = " must not contain NUL or unpaired surrogates"
			)
			for _, c := range []struct {
				want string
				m    Message
			}{
				{"either To or RoutingKey", Message{Data: 1}},
				{"give either", Message{To: "user:anna", RoutingKey: "order.paid", Data: 1}},
				{"at most 65536", Message{To: "user:anna", Data: strings.Repeat("x", MaxData)}},
				{"at most 65536", Message{To: "user:anna", Data: strings.Repeat("<", MaxData)}},
				{"encode the data", Message{To: "user:anna", Data: make(chan int)}},
				{"unexpected end of JSON", Message{To: "user:anna", Data: json.RawMessage(`{`)}},
				{"Data must not be null", Message{To: "user:anna"}},
				{"Data must not be null", Message{To: "user:anna", Data: json.RawMessage(" null ")}},
				{"Data must not be null", Message{To: "user:anna", Data: (*int)(nil)}},
				{"year outside of range", Message{To: "user:anna", Data: 1, SentAt: time.Date(10001, 1, 1, 0, 0, 0, 0, time.UTC)}},
				{"sent_at must be between the years 1 and 9999", Message{To: "user:anna", Data: 1, SentAt: time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}},

				{"data must be valid UTF-8", Message{To: "user:anna", Data: json.RawMessage("\"\xff\"")}},
				{"data must be valid UTF-8", Message{To: "user:anna", Data: json.RawMessage("{\"\xff\":1}")}},
				{"data must be valid UTF-8", Message{To: "user:anna", Data: map[string]any{"list": []any{json.RawMessage("\"\xc3\"")}}}},
				{"data" + nul, Message{To: "user:anna", Data: "\x00"}},
				{"data" + nul, Message{To: "user:anna", Data: json.RawMessage(`{"a\u0000":1}`)}},
				{"data" + nul, Message{To: "user:anna", Data: json.RawMessage(`"\ud800"`)}},
				{deep, Message{To: "user:anna", Data: nested(20)}},
				{deep, Message{To: "user:anna", Data: nested(9990)}},
				{"exceeded max depth", Message{To: "user:anna", Data: nested(20_000)}},

				{"to must be valid UTF-8", Message{To: "https://example.com/\xff", Data: 1}},
				{"to" + nul, Message{To: "user:\x00", Data: 1}},
				{"to must be user:<name>", Message{To: "user:", Data: 1}},
				{"to" + nul, Message{To: "https://example.com/\x00", Data: 1}},
				{"to must be an https (or http) URL", Message{To: "https://example.com/" + strings.Repeat("x", 2000), Data: 1}},
				{"to must not begin with wake", Message{To: "evt.paid", Data: 1}},
				{"to must not be given together with exchange_name", Message{To: "user:anna", ExchangeName: "shop", Data: 1}},
				{"routing_key" + nul, Message{RoutingKey: "order.\x00", Data: 1}},
				{"routing_key must make a subject", Message{RoutingKey: "order.\xff", Data: 1}},
				{"routing_key must make a subject", Message{RoutingKey: strings.Repeat("x", 256), Data: 1}},
				{"exchange_name" + nul, Message{ExchangeName: "\x00", RoutingKey: "order", Data: 1}},
				{"exchange_name must not contain a dot", Message{ExchangeName: "shop.eu", RoutingKey: "order", Data: 1}},
				{"from" + nul, Message{To: "user:anna", From: "\x00", Data: 1}},
				{"from must be 1 to 50 characters", Message{To: "user:anna", From: "\xff", Data: 1}},
				{"from must be 1 to 50 characters", Message{To: "user:anna", From: strings.Repeat("x", 51), Data: 1}},
				{"type" + nul, Message{To: "user:anna", Type: "\x00", Data: 1}},
				{"type must be 1 to 255 characters", Message{To: "user:anna", Type: "a\xff", Data: 1}},
				{"type must not begin with sendonce.", Message{To: "user:anna", Type: "sendonce.mine", Data: 1}},
				{tooManySends, Message{To: "user:anna", MaxSends: -5, Data: 1}},
				{tooManySends, Message{To: "user:anna", MaxSends: 21, Data: 1}},
				{"expected_receipts must be between 1 and 100", Message{To: "order.paid", ExpectedReceipts: 101, Data: 1}},
				{"expected_receipts must be 1 unless confirm is true", Message{To: "order.paid", Confirm: &no, ExpectedReceipts: 2, Data: 1}},
			} {
				_, err := Put(t.Context(), tx, c.m)
				require.ErrorContains(t, err, c.want, c.want)
				_, err = tx.Exec(t.Context(), "SELECT 1")
				require.NoError(t, err, c.want)
			}
			_, err := tx.Exec(t.Context(), "INSERT INTO orders VALUES (1)")
			return err
		}))
		require.Equal(t, 1, count(t, db, "orders"))
		require.Zero(t, count(t, db, "message_outbox"))
	})
}

// nested returns lists in lists, levels deep.
func nested(levels int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
}

// The service would accept these messages, so Put must.
func TestPutAcceptsMessagesAtTheLimits(t *testing.T) {
	t.Parallel()
	db := database(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for i, m := range []Message{
			{To: "user:anna", Data: nested(19)},
			{To: "user:anna", Data: strings.Repeat("<", MaxData-2)},
			{To: "user:anna", Data: "\xff is replaced by encoding/json"},
			{To: "user:anna", Data: json.RawMessage(`[1e300,"\ud83d\ude00",{"a":1,"a":null}]`)},
			{To: "https://example.com/" + strings.Repeat("&", 1980), Data: strings.Repeat("x", MaxData-2)},
			{From: strings.Repeat("x", 50), Type: strings.Repeat("x", 255), RoutingKey: strings.Repeat("x", 243), Data: false, MaxSends: 20, ExpectedReceipts: 100},
		} {
			_, err := Put(t.Context(), tx, m)
			require.NoError(t, err, i)
		}
		return nil
	}))
	require.Equal(t, 6, count(t, db, "message_outbox"))
}

func TestDDLIsIdempotent(t *testing.T) {
	t.Parallel()
	db := database(t)
	exec(t, db, DDL)
}

func TestRefusedMessageIsSentAgainOnlyAfterRetry(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	ids := put(t, db, 40)
	bad := []string{ids[3], ids[20]}
	service.reply = func(id string, _ int) int {
		if slices.Contains(bad, id) {
			return http.StatusForbidden
		}
		return 0
	}
	n, err := service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 38, n, "all other messages are sent")

	list, err := Refused(t.Context(), db, 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, m := range list {
		require.Contains(t, bad, m.ID)
		require.Contains(t, string(m.Body), m.ID)
		require.Equal(t, 1, m.Tries)
		require.Equal(t, "403 some_word: bad ? luck", m.Reason)
		require.False(t, m.RefusedAt.Before(m.CreatedAt))
	}

	_, err = service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	posts, _ := service.counts()
	require.Equal(t, 40, posts, "a refused message is not sent again automatically")

	service.reply = nil
	n64, err := Retry(t.Context(), db, bad[0], newID())
	require.NoError(t, err)
	require.EqualValues(t, 1, n64)
	n, err = service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 1, count(t, db, "message_outbox"))
}

// eventually waits until cond returns true.
func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 20*time.Second, 5*time.Millisecond)
}

// runForwarder runs f until the test ends.
func runForwarder(t *testing.T, f *Forwarder) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		f.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}
