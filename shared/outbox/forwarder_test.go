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

const dueNow = "UPDATE message_outbox SET next_at = now()"

func TestUnavailableServiceUsesNoTries(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	put(t, db, 3)

	n, err := NewForwarder(db, api.NewClient(gone.URL, "order", "secret"), slog.New(slog.DiscardHandler)).Drain(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.Zero(t, n)
	require.Equal(t, 3, count(t, db, "message_outbox WHERE refused_at IS NULL AND tries = 1 AND last_error LIKE '%refused' AND next_at > now()"))

	exec(t, db, dueNow)
	n, err = service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Zero(t, count(t, db, "message_outbox"))
}

func TestUnavailableServiceGetsOneProbe(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
	service.reply = func(string, int) int { return http.StatusServiceUnavailable }
	put(t, db, 3*batch)
	_, err := service.forwarder(db).Drain(t.Context())
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusServiceUnavailable, refused.Status)
	posts, _ := service.asked()
	require.Equal(t, batch, posts)
}

func TestFailingMessageDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
	ids := put(t, db, 3*batch)
	service.reply = func(id string, _ int) int {
		if id == ids[0] {
			return http.StatusInternalServerError
		}
		return 0
	}
	n, err := service.forwarder(db).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3*batch-1, n)
	require.Equal(t, 1, count(t, db, "message_outbox WHERE id = $1::text::uuid AND refused_at IS NULL AND tries = 1", ids[0]))
}

func TestJudge(t *testing.T) {
	t.Parallel()
	own := func(status int) []byte {
		w := httptest.NewRecorder()
		say(w, status)
		return w.Body.Bytes()
	}
	for status, want := range map[int]verdict{
		200: verdictAccepted, 202: verdictAccepted,
		400: verdictRefused, 403: verdictRefused, 413: verdictRefused, 415: verdictRefused, 422: verdictRefused,
		409: verdictLater, 500: verdictLater,
		204: verdictUnavailable, 302: verdictUnavailable, 401: verdictUnavailable, 404: verdictUnavailable, 405: verdictUnavailable, 408: verdictUnavailable,
		429: verdictUnavailable, 502: verdictUnavailable, 503: verdictUnavailable, 504: verdictUnavailable,
	} {
		o := outcomeOf(status, http.Header{}, own(status))
		require.Equal(t, want, o.verdict, status)
		require.Equal(t, want == verdictAccepted, o.err == nil, status)
		for _, other := range []string{"", "<html>", `{"ok":true}`, `null`} {
			require.Equal(t, verdictUnavailable, outcomeOf(status, http.Header{}, []byte(other)).verdict, "%d %s: a response of something in between", status, other)
		}
	}
	for header, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999999": time.Hour} {
		require.Equal(t, want, outcomeOf(503, http.Header{"Retry-After": {header}}, own(503)).retryAfter, header)
	}
}

func TestRedirectIsNotDelivered(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, r.URL.Path, http.StatusMovedPermanently)
			return
		}
		say(w, http.StatusOK)
	}))
	t.Cleanup(server.Close)
	put(t, db, 1)
	for _, client := range []*http.Client{server.Client(), api.NewClient("", "", "").HTTP} {
		exec(t, db, dueNow)
		f := NewForwarder(db, &api.Client{BaseURL: server.URL, HTTP: client}, slog.New(slog.DiscardHandler))
		_, err := f.Drain(t.Context())
		require.Error(t, err)
		require.Equal(t, 1, count(t, db, "message_outbox"))
	}
}

func TestForwarderHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
	service.reply = func(string, int) int { return http.StatusServiceUnavailable }
	service.after = func(w http.ResponseWriter) { w.Header().Set("Retry-After", "600") }
	put(t, db, 1)
	_, err := service.forwarder(db).Drain(t.Context())
	require.Error(t, err)
	require.Equal(t, 1, count(t, db, "message_outbox WHERE next_at BETWEEN now() + '500s'::interval AND now() + '601s'::interval"))
}

func TestLostResponseIsRetriedWithSameID(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
	var lost atomic.Bool
	service.after = func(http.ResponseWriter) {
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
	require.Len(t, service.kept, 1)
}

func TestTwoForwardersShareTheRows(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
	// Nobody gets its response before both have a batch in flight.
	var both sync.WaitGroup
	both.Add(2 * batch)
	service.after = func(http.ResponseWriter) {
		both.Done()
		both.Wait()
	}
	put(t, db, 2*batch)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, _, err := service.forwarder(db).pass(context.Background())
			errs <- err
		}()
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	posts, kept := service.asked()
	require.Equal(t, 2*batch, posts, "each was sent by one of them")
	require.Equal(t, 2*batch, kept)
	require.Zero(t, count(t, db, "message_outbox"))
}

func TestStopWaitsForResponses(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	ids := put(t, db, 2)
	ctx, stop := context.WithCancel(t.Context())
	replied := make(chan struct{})
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(body), ids[0]) {
			w := httptest.NewRecorder()
			say(w, http.StatusOK)
			res := w.Result()
			res.Request, res.Body = r, readToEnd{res.Body, replied}
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

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// readToEnd closes done when its reader was closed.
type readToEnd struct {
	io.ReadCloser
	done chan<- struct{}
}

func (r readToEnd) Close() error {
	close(r.done)
	return r.ReadCloser.Close()
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("a wake is followed at once", func(t *testing.T) {
		t.Parallel()
		db, _ := database(t)
		service := newLedger(t)
		f := service.forwarder(db)
		f.poll = time.Hour
		running(t, f)
		for i := range 3 {
			put(t, db, 1)
			f.Wake()
			f.Wake()
			settled(t, func() bool { _, kept := service.asked(); return kept == i+1 })
		}
	})

	t.Run("without a wake the poll finds it", func(t *testing.T) {
		t.Parallel()
		db, _ := database(t)
		service := newLedger(t)
		f := service.forwarder(db)
		f.poll = 20 * time.Millisecond
		running(t, f)
		put(t, db, 1)
		settled(t, func() bool { return count(t, db, "message_outbox") == 0 })
		_, kept := service.asked()
		require.Equal(t, 1, kept)
	})

	t.Run("after a failure it goes on", func(t *testing.T) {
		t.Parallel()
		db, _ := database(t)
		service := newLedger(t)
		service.reply = func(_ string, n int) int {
			if n == 1 {
				return http.StatusServiceUnavailable
			}
			return 0
		}
		f := service.forwarder(db)
		f.poll = 20 * time.Millisecond
		put(t, db, 2)
		running(t, f)
		settled(t, func() bool { return count(t, db, "message_outbox") == 0 })
	})

	t.Run("new messages do not make it ask an absent service", func(t *testing.T) {
		t.Parallel()
		db, _ := database(t)
		service := newLedger(t)
		service.reply = func(string, int) int { return http.StatusServiceUnavailable }
		logged := make(chan error, 8)
		f := service.forwarder(db)
		f.poll, f.log = time.Hour, slog.New(errorHandler{logged})
		put(t, db, 1)
		running(t, f)
		require.ErrorContains(t, <-logged, "503")
		put(t, db, 1)
		f.Wake()
		require.Never(t, func() bool { posts, _ := service.asked(); return posts > 1 }, 200*time.Millisecond, 20*time.Millisecond)
	})

	t.Run("a database that is away is logged and waited for", func(t *testing.T) {
		t.Parallel()
		db, _ := database(t)
		service := newLedger(t)
		exec(t, db, "ALTER TABLE message_outbox RENAME TO elsewhere")
		logged := make(chan error, 1024)
		f := service.forwarder(db)
		f.poll, f.log = 20*time.Millisecond, slog.New(errorHandler{logged})
		running(t, f)
		require.ErrorContains(t, <-logged, "message_outbox")
		exec(t, db, "ALTER TABLE elsewhere RENAME TO message_outbox")
		put(t, db, 1)
		settled(t, func() bool { return count(t, db, "message_outbox") == 0 })
	})
}

func TestUnsettledResponseIsRetried(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	service := newLedger(t)
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
	posts, kept := service.asked()
	require.Equal(t, 2, posts)
	require.Equal(t, 1, kept)
}

// errorHandler hands on the error of each record.
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
