package outbox

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

// dueNow ends the backoff of all messages.
const dueNow = "UPDATE message_outbox SET next_at = now()"

func TestUnavailableServiceKeepsMessages(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	put(t, db, 3)

	n, err := NewForwarder(db, api.NewClient(closed.URL, "order", "secret"), slog.New(slog.DiscardHandler)).Drain(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.Zero(t, n)
	require.Equal(t, 3, count(t, db, "message_outbox WHERE refused_at IS NULL AND tries = 1 AND last_error LIKE '%refused' AND next_at > now()"))

	exec(t, db, dueNow)
	n, err = service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Zero(t, count(t, db, "message_outbox"))
}

func TestUnavailableServiceGetsOneBatch(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	service.reply = func(string, int) int { return http.StatusServiceUnavailable }
	put(t, db, 3*batchSize)
	_, err := service.forwarder(db).Drain(t.Context())
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusServiceUnavailable, refused.Status)
	posts, _ := service.counts()
	require.Equal(t, batchSize, posts)
}

func TestFailingMessageDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	ids := put(t, db, 3*batchSize)
	service.reply = func(id string, _ int) int {
		if id == ids[0] {
			return http.StatusInternalServerError
		}
		return 0
	}
	n, err := service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3*batchSize-1, n)
	require.Equal(t, 1, count(t, db, "message_outbox WHERE id = $1::text::uuid AND refused_at IS NULL AND tries = 1", ids[0]))
}

// The inbox of one user is full of this sender's messages. Messages to other users are sent without delay.
func TestFullInboxDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	delayed := map[string]bool{}
	for _, id := range put(t, db, 3*batchSize) {
		delayed[id] = true
	}
	service.reply = func(id string, _ int) int {
		if delayed[id] {
			return http.StatusTooManyRequests
		}
		return 0
	}
	service.beforeResponse = func(w http.ResponseWriter) { w.Header().Set("Retry-After", "600") }
	service.fields = []api.Field{{Field: "to", Message: "accepts messages of this sender again later"}}
	f := service.forwarder(db)
	f.poll = time.Hour
	runForwarder(t, f)
	eventually(t, func() bool {
		return count(t, db, "message_outbox WHERE tries = 1 AND next_at BETWEEN now() + '500s'::interval AND now() + '601s'::interval") == len(delayed)
	})
	put(t, db, 2)
	f.Wake()
	eventually(t, func() bool { _, stored := service.counts(); return stored == 2 })
	require.Equal(t, len(delayed), count(t, db, "message_outbox WHERE tries = 1 AND refused_at IS NULL AND last_error LIKE '%later%'"))
}

func TestOutcomeOfResponse(t *testing.T) {
	t.Parallel()
	fromService := func(status int) []byte {
		w := httptest.NewRecorder()
		respond(w, "id", status, nil)
		return w.Body.Bytes()
	}
	for status, want := range map[int]verdict{
		200: verdictAccepted, 202: verdictAccepted,
		400: verdictRefused, 403: verdictRefused, 413: verdictRefused, 415: verdictRefused, 422: verdictRefused,
		409: verdictLater, 500: verdictLater,
		204: verdictUnavailable, 302: verdictUnavailable, 401: verdictUnavailable, 404: verdictUnavailable, 405: verdictUnavailable, 408: verdictUnavailable,
		429: verdictUnavailable, 502: verdictUnavailable, 503: verdictUnavailable, 504: verdictUnavailable,
	} {
		o := outcomeOf("id", status, http.Header{}, fromService(status))
		require.Equal(t, want, o.verdict, status)
		require.Equal(t, want == verdictAccepted, o.err == nil, status)
		for _, other := range []string{"", "<html>", `{"ok":true}`, `null`} {
			require.Equal(t, verdictUnavailable, outcomeOf("id", status, http.Header{}, []byte(other)).verdict, "%d %s: a proxy's response", status, other)
		}
	}
	for _, status := range []int{200, 202} {
		require.Equal(t, verdictUnavailable, outcomeOf("another", status, http.Header{}, fromService(status)).verdict, "%d: a cached response to another POST", status)
	}
	w := httptest.NewRecorder()
	respond(w, "id", 429, []api.Field{{Field: "to", Message: "accepts messages of this sender again later"}})
	require.Equal(t, verdictLater, outcomeOf("id", 429, http.Header{}, w.Body.Bytes()).verdict, "too many messages to one user")
	for header, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999999": time.Hour} {
		require.Equal(t, want, outcomeOf("id", 503, http.Header{"Retry-After": {header}}, fromService(503)).retryAfter, header)
	}
}

func TestRedirectedPostKeepsMessage(t *testing.T) {
	t.Parallel()
	db := database(t)
	id := put(t, db, 1)[0]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, r.URL.Path, http.StatusMovedPermanently)
			return
		}
		respond(w, id, http.StatusOK, nil)
	}))
	t.Cleanup(server.Close)
	for _, client := range []*http.Client{server.Client(), api.NewClient("", "", "").HTTP} {
		exec(t, db, dueNow)
		f := NewForwarder(db, &api.Client{BaseURL: server.URL, HTTP: client}, slog.New(slog.DiscardHandler))
		_, err := f.Drain(t.Context())
		require.Error(t, err)
		require.Equal(t, 1, count(t, db, "message_outbox"))
	}
}

func TestLostResponseIsRetriedWithSameID(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	var lost atomic.Bool
	service.beforeResponse = func(http.ResponseWriter) {
		if lost.CompareAndSwap(false, true) {
			panic(http.ErrAbortHandler)
		}
	}
	ids := put(t, db, 1)
	_, err := service.forwarder(db).Drain(t.Context())
	require.Error(t, err)
	require.Equal(t, 1, count(t, db, "message_outbox"))

	exec(t, db, dueNow)
	n, err := service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{ids[0], ids[0]}, service.posts)
	require.Len(t, service.stored, 1)
}

func TestTwoForwardersShareTheRows(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	// No forwarder receives a response before both have a batch in flight.
	var inFlight sync.WaitGroup
	inFlight.Add(2 * batchSize)
	service.beforeResponse = func(http.ResponseWriter) {
		inFlight.Done()
		inFlight.Wait()
	}
	put(t, db, 2*batchSize)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := service.forwarder(db).Drain(context.Background())
			errs <- err
		}()
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	posts, stored := service.counts()
	require.Equal(t, 2*batchSize, posts, "each message was sent by one forwarder")
	require.Equal(t, 2*batchSize, stored)
	require.Zero(t, count(t, db, "message_outbox"))
}

func TestStopStoresOutcomesOfReceivedResponses(t *testing.T) {
	t.Parallel()
	db := database(t)
	ids := put(t, db, 2)
	ctx, stop := context.WithCancel(t.Context())
	replied := make(chan struct{})
	client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(body), ids[0]) {
			w := httptest.NewRecorder()
			respond(w, ids[0], http.StatusOK, nil)
			res := w.Result()
			res.Request, res.Body = r, signalOnClose{res.Body, replied}
			return res, nil
		}
		<-replied
		stop()
		<-r.Context().Done()
		return nil, r.Context().Err()
	})}
	n, err := NewForwarder(db, &api.Client{HTTP: client}, slog.New(slog.DiscardHandler)).Drain(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 1, count(t, db, "message_outbox"))
	require.Equal(t, 1, count(t, db, "message_outbox WHERE id = $1::text::uuid AND tries = 0 AND last_error IS NULL", ids[1]))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// signalOnClose closes done when the body is closed.
type signalOnClose struct {
	io.ReadCloser
	done chan<- struct{}
}

func (r signalOnClose) Close() error {
	close(r.done)
	return r.ReadCloser.Close()
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("Wake sends at once", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		f := service.forwarder(db)
		f.poll = time.Hour
		runForwarder(t, f)
		for i := range 3 {
			put(t, db, 1)
			f.Wake()
			f.Wake()
			eventually(t, func() bool { _, stored := service.counts(); return stored == i+1 })
		}
	})

	t.Run("a failure is retried", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		service.reply = func(_ string, n int) int {
			if n == 1 {
				return http.StatusServiceUnavailable
			}
			return 0
		}
		f := service.forwarder(db)
		f.poll = 20 * time.Millisecond
		put(t, db, 2)
		runForwarder(t, f)
		eventually(t, func() bool { return count(t, db, "message_outbox") == 0 })
	})

	t.Run("Wake does not shorten the wait for an unavailable service", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		service.reply = func(string, int) int { return http.StatusServiceUnavailable }
		logged := make(chan error, 8)
		f := service.forwarder(db)
		f.poll, f.log = time.Hour, slog.New(errorHandler{logged})
		put(t, db, 1)
		runForwarder(t, f)
		require.ErrorContains(t, <-logged, "503")
		put(t, db, 1)
		f.Wake()
		require.Never(t, func() bool { posts, _ := service.counts(); return posts > 1 }, 200*time.Millisecond, 20*time.Millisecond)
	})

	t.Run("a database error is logged and retried", func(t *testing.T) {
		t.Parallel()
		db, service := database(t), newFakeService(t)
		exec(t, db, "ALTER TABLE message_outbox RENAME TO elsewhere")
		logged := make(chan error, 1024)
		f := service.forwarder(db)
		f.poll, f.log = 20*time.Millisecond, slog.New(errorHandler{logged})
		runForwarder(t, f)
		require.ErrorContains(t, <-logged, "message_outbox")
		exec(t, db, "ALTER TABLE elsewhere RENAME TO message_outbox")
		put(t, db, 1)
		eventually(t, func() bool { return count(t, db, "message_outbox") == 0 })
	})
}

func TestMessageIsSentAgainIfItsDeleteFailed(t *testing.T) {
	t.Parallel()
	db, service := database(t), newFakeService(t)
	exec(t, db, `CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$`)
	exec(t, db, `CREATE TRIGGER stay BEFORE DELETE ON message_outbox FOR EACH ROW EXECUTE FUNCTION stay()`)
	put(t, db, 1)
	n, err := service.forwarder(db).Drain(t.Context())
	require.ErrorContains(t, err, "not now")
	require.Zero(t, n)
	exec(t, db, "DROP TRIGGER stay ON message_outbox")
	n, err = service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	posts, stored := service.counts()
	require.Equal(t, 2, posts)
	require.Equal(t, 1, stored)
}

// errorHandler sends the error of each log record to errs.
type errorHandler struct{ errs chan<- error }

func (h errorHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h errorHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h errorHandler) WithGroup(string) slog.Handler            { return h }
func (h errorHandler) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			h.errs <- err
		}
		return true
	})
	return nil
}
