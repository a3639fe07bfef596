package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxBody = 1 << 20 // bytes; a message's data has at most 64 KiB
	maxID   = 255     // bytes
)

// Message is the content of a CloudEvent in binary mode.
type Message struct {
	ID     string // the same for each send of the message
	Source string
	Type   string
	Data   []byte
}

// Receiver does all steps for a message: transaction, Once, commit, confirmation. Its methods are safe
// for concurrent use; its fields must not change meanwhile.
type Receiver struct {
	DB       *pgxpool.Pool
	Consumer string // each consumer processes a message once

	// Effect processes the message. It writes through tx and must not end it.
	Effect func(ctx context.Context, tx pgx.Tx, m Message) error

	// Confirm reports the committed effect to the sender, as Confirmer does. If it is nil, the nil error
	// of Receive or the 2xx of ServeHTTP is the confirmation.
	Confirm func(ctx context.Context, messageID string) error

	Log *slog.Logger // for errors of ServeHTTP; nil = slog.Default()
}

// Receive returns nil once the effect is committed, now or by an earlier call, and confirmed; first
// reports whether this call ran the effect. After an error the message must be delivered again, although
// the effect may be committed.
func (r *Receiver) Receive(ctx context.Context, m Message) (first bool, err error) {
	err = pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) (err error) {
		first, err = Once(ctx, tx, r.Consumer, m.ID, func(ctx context.Context) error { return r.Effect(ctx, tx, m) })
		return err
	})
	if err != nil {
		return false, fmt.Errorf("receive %s: %w", m.ID, err)
	}
	if r.Confirm == nil {
		return first, nil
	}
	if err := r.Confirm(ctx, m.ID); err != nil {
		return first, fmt.Errorf("confirm %s: %w", m.ID, err)
	}
	return first, nil
}

// ServeHTTP receives a CloudEvent in binary mode. It returns 204 if Receive succeeded and 500 if it
// failed, so that the sender delivers again; 400 for an invalid message and 413 above 1 MiB.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	m := Message{ID: req.Header.Get("ce-id"), Source: req.Header.Get("ce-source"), Type: req.Header.Get("ce-type")}
	if m.ID == "" || len(m.ID) > maxID || !utf8.ValidString(m.ID) {
		http.Error(w, "ce-id must be the id of a CloudEvent, at most 255 bytes of UTF-8", http.StatusBadRequest)
		return
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, "the message is larger than 1 MiB", http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "the message is incomplete", http.StatusBadRequest)
		return
	}
	m.Data = data
	if _, err := r.Receive(req.Context(), m); err != nil {
		cmp.Or(r.Log, slog.Default()).ErrorContext(req.Context(), "message not received", "consumer", r.Consumer, "error", err)
		http.Error(w, "not received; deliver it again", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
