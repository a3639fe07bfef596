package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxBody = 1 << 20 // bytes; a message's data has at most 64 KiB
	maxID   = 255     // bytes
)

// Message is the content of a CloudEvent.
type Message struct {
	ID           string // the same for each send of the message
	Source       string
	Type         string
	Data         []byte
	ConfirmToken string // of a message to a URL with confirm: true, else ""
}

// Receiver does all steps for a message: transaction, Once, commit, confirmation. Its methods are safe
// for concurrent use, unless a field is changed meanwhile.
type Receiver struct {
	DB       *pgxpool.Pool
	Consumer string // for Once: each consumer processes a message once

	// Effect processes the message. It writes through tx and must not end tx.
	Effect func(ctx context.Context, tx pgx.Tx, m Message) error

	// Confirm reports the committed effect to the sender, as Confirmer does. If Confirm is nil, the nil error of Receive
	// or the 204 of ServeHTTP is the confirmation.
	Confirm func(ctx context.Context, m Message) error

	Log *slog.Logger // for errors of ServeHTTP; nil = slog.Default()
}

// Receive returns nil if the effect is committed, now or by an earlier call, and Confirm succeeded or is nil. first
// reports whether this call committed the effect. After an error the message must be delivered again, although the
// effect may be committed.
func (r *Receiver) Receive(ctx context.Context, m Message) (first bool, err error) {
	return r.receive(ctx, m, r.Confirm)
}

func (r *Receiver) receive(ctx context.Context, m Message, confirm func(context.Context, Message) error) (first bool, err error) {
	err = pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) (err error) {
		first, err = Once(ctx, tx, r.Consumer, m.ID, func(ctx context.Context) error { return r.Effect(ctx, tx, m) })
		return err
	})
	if err != nil {
		return false, fmt.Errorf("receive %s: %w", m.ID, err)
	}
	if confirm == nil {
		return first, nil
	}
	if err := confirm(ctx, m); err != nil {
		return first, fmt.Errorf("confirm %s: %w", m.ID, err)
	}
	return first, nil
}

// ServeHTTP receives a CloudEvent, in structured mode as Sendonce posts to URLs, or in binary mode. It responds with 204
// after success, and with 500 after a failure, so that the sender delivers again. It responds with 400 to an invalid or
// incomplete message, and with 413 to more than 1 MiB. In structured mode it calls Confirm only if the event has a
// token: without a token, the 204 is the confirmation.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, "the message is larger than 1 MiB", http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "the message is incomplete", http.StatusBadRequest)
		return
	}
	structured := isStructured(req.Header)
	m, err := parse(req.Header, body, structured)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	confirm := r.Confirm
	if structured && m.ConfirmToken == "" {
		confirm = nil // the 204 is the confirmation
	}
	if _, err := r.receive(req.Context(), m, confirm); err != nil {
		cmp.Or(r.Log, slog.Default()).ErrorContext(req.Context(), "message not received", "consumer", r.Consumer, "error", err)
		http.Error(w, "not received; deliver it again", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func isStructured(h http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(h.Get("Content-Type")) // "" if the media type is invalid
	return mediaType == event.ApplicationCloudEventsJSON
}

// parse returns the message in a request. Its errors are for the sender.
func parse(h http.Header, body []byte, structured bool) (m Message, err error) {
	if structured {
		var e event.Event
		if err := e.UnmarshalJSON(body); err != nil {
			return Message{}, fmt.Errorf("the body must be a CloudEvent in JSON: %w", err)
		}
		token, _ := e.Extensions()["confirmtoken"].(string)
		m = Message{ID: e.ID(), Source: e.Source(), Type: e.Type(), Data: e.Data(), ConfirmToken: token}
	} else {
		m = Message{ID: h.Get("ce-id"), Source: h.Get("ce-source"), Type: h.Get("ce-type"), Data: body, ConfirmToken: h.Get("ce-confirmtoken")}
	}
	if m.ID == "" || len(m.ID) > maxID || !utf8.ValidString(m.ID) || strings.ContainsRune(m.ID, 0) {
		return Message{}, errors.New("the event's id (ce-id in binary mode) must have 1 to 255 bytes of UTF-8 without NUL")
	}
	return m, nil
}
