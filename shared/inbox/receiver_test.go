package inbox

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// receiver returns a Receiver whose effect is one row in the table effects, with the data of the message.
func receiver(db *pgxpool.Pool, confirm func(context.Context, Message) error) *Receiver {
	return &Receiver{
		DB: db, Consumer: "points", Confirm: confirm, Log: slog.New(slog.DiscardHandler),
		Effect: func(ctx context.Context, tx pgx.Tx, m Message) error { return effectOf(tx, string(m.Data))(ctx) },
	}
}

func deliver(h http.Handler, id, data string) int {
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(data))
	req.Header.Set("ce-id", id)
	req.Header.Set("ce-source", "/orders")
	req.Header.Set("ce-type", "order.paid")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code
}

func deliverStructured(h http.Handler, event string) int {
	req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(event))
	req.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Code
}

func TestReceiver(t *testing.T) {
	t.Parallel()

	t.Run("a failed confirmation is repeated by the next delivery", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		unavailable, confirmed := true, []string{}
		r := receiver(db, func(_ context.Context, m Message) error {
			if unavailable {
				return errors.New("connection refused")
			}
			confirmed = append(confirmed, m.ID)
			return nil
		})
		require.Equal(t, http.StatusInternalServerError, deliver(r, "m1", "10 points"))
		require.Equal(t, 1, count(t, db, "effects"))
		require.Empty(t, confirmed)

		unavailable = false
		require.Equal(t, http.StatusNoContent, deliver(r, "m1", "10 points"))
		require.Equal(t, []string{"m1"}, confirmed)
		require.Equal(t, 1, count(t, db, "effects"))
	})

	t.Run("a duplicate is confirmed again", func(t *testing.T) {
		t.Parallel()
		var confirmed []string
		r := receiver(database(t), func(_ context.Context, m Message) error {
			confirmed = append(confirmed, m.ID)
			return nil
		})
		first, err := r.Receive(t.Context(), Message{ID: "m1"})
		require.NoError(t, err)
		require.True(t, first)
		first, err = r.Receive(t.Context(), Message{ID: "m1"})
		require.NoError(t, err)
		require.False(t, first)
		require.Equal(t, []string{"m1", "m1"}, confirmed)
	})

	t.Run("the effect is committed before the confirmation", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		r := receiver(db, func(context.Context, Message) error {
			require.Equal(t, 1, count(t, db, "effects"))
			return nil
		})
		require.Equal(t, http.StatusNoContent, deliver(r, "m1", "10 points"))
	})

	t.Run("a failed effect is rolled back, not confirmed and retried", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		r := receiver(db, func(context.Context, Message) error { return errors.New("must not be called") })
		r.Effect = func(context.Context, pgx.Tx, Message) error { return errors.New("no such account") }
		require.Equal(t, http.StatusInternalServerError, deliver(r, "m1", "10 points"))
		require.Zero(t, count(t, db, "message_inbox"))

		require.Equal(t, http.StatusNoContent, deliver(receiver(db, nil), "m1", "10 points"))
		require.Equal(t, 1, count(t, db, "effects"))
	})

	t.Run("ten concurrent deliveries have one effect and return 204", func(t *testing.T) {
		t.Parallel()
		db := database(t)
		r := receiver(db, nil)
		codes := make([]int, 10)
		var all sync.WaitGroup
		for i := range codes {
			all.Go(func() { codes[i] = deliver(r, "m1", "10 points") })
		}
		all.Wait()
		for _, code := range codes {
			require.Equal(t, http.StatusNoContent, code)
		}
		require.Equal(t, 1, count(t, db, "effects"))
	})

	t.Run("the effect receives the message", func(t *testing.T) {
		t.Parallel()
		r := receiver(database(t), nil)
		var got Message
		r.Effect = func(_ context.Context, _ pgx.Tx, m Message) error {
			got = m
			return nil
		}
		require.Equal(t, http.StatusNoContent, deliver(r, "m1", "10 points"))
		require.Equal(t, Message{ID: "m1", Source: "/orders", Type: "order.paid", Data: []byte("10 points")}, got)

		for data, want := range map[string]string{
			`"data":{"points":10}`:                        `{"points":10}`,
			`"data_base64":"MTAgcG9pbnRz"`:                "10 points",
			`"datacontenttype":"text/plain","data":"ten"`: "ten",
		} {
			code := deliverStructured(r, `{"specversion":"1.0","id":"of `+want[:1]+`","source":"/orders","type":"order.paid","confirmtoken":"t",`+data+`}`)
			require.Equal(t, http.StatusNoContent, code)
			require.Equal(t, Message{ID: "of " + want[:1], Source: "/orders", Type: "order.paid", Data: []byte(want), ConfirmToken: "t"}, got)
		}
	})
}

func TestReceiverRejectsInvalidMessages(t *testing.T) {
	t.Parallel()
	r := &Receiver{Effect: func(context.Context, pgx.Tx, Message) error { panic("must not run") }}
	require.Equal(t, http.StatusBadRequest, deliver(r, "", "{}"))
	require.Equal(t, http.StatusBadRequest, deliver(r, strings.Repeat("x", maxID+1), "{}"))
	require.Equal(t, http.StatusBadRequest, deliver(r, "\xff", "{}"))
	require.Equal(t, http.StatusBadRequest, deliver(r, "m\x001", "{}"))
	for _, event := range []string{"", "{", "[]", "null", `{"specversion":"1.0","source":"/","type":"t"}`, `{"id":"m1"}`, `{"specversion":"1.0","id":7,"source":"/","type":"t"}`,
		`{"specversion":"1.0","id":"m\u00001","source":"/","type":"t"}`, "{\"specversion\":\"1.0\",\"id\":\"m\xff\",\"source\":\"/\",\"type\":\"t\"}"} {
		require.Equal(t, http.StatusBadRequest, deliverStructured(r, event), event)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, deliver(r, "m1", strings.Repeat("x", maxBody+1)))

	req := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	req.Header.Set("ce-id", "m1")
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	require.Equal(t, http.StatusBadRequest, w.Code)
}
