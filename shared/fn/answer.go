package fn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/task"
)

const contentTypeJSON = "application/json; charset=utf-8"

// The refusals that are HTTP's and not the domain's.
const (
	codeUnauthenticated      = "unauthenticated"
	codeMethodNotAllowed     = "method_not_allowed"
	codeTooLarge             = "too_large"
	codeUnsupportedMediaType = "unsupported_media_type"
	codeTooManyCalls         = "too_many_calls"
	codeTooManyAttempts      = "too_many_attempts"
	codeInternal             = "internal"
)

// statusClientGone is for the log: most often nobody is left to read it.
const statusClientGone = 499

// statusOf is the one table from error codes to HTTP statuses. A code that is
// not in it is a mistake of ours.
func statusOf(code string) int {
	switch code {
	case task.CodeInvalid, task.CodeBlocked:
		return http.StatusBadRequest
	case codeUnauthenticated:
		return http.StatusUnauthorized
	case task.CodeForbidden:
		return http.StatusForbidden
	case task.CodeNotFound, task.CodeNoDefault:
		return http.StatusNotFound
	case codeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case task.CodeKeyInFlight, task.CodeStaleClaim, task.CodeDefaultSent, task.CodeDefaultExists, task.CodeConflict:
		return http.StatusConflict
	case codeTooLarge:
		return http.StatusRequestEntityTooLarge
	case codeUnsupportedMediaType:
		return http.StatusUnsupportedMediaType
	case codeTooManyAttempts, codeTooManyCalls:
		return http.StatusTooManyRequests
	case task.CodeKeyReused:
		return http.StatusUnprocessableEntity
	case task.CodeQuota:
		return http.StatusTooManyRequests
	case task.CodeServerBusy:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func Busy(message string) *task.Error {
	return &task.Error{Code: task.CodeServerBusy, Message: message, RetryAfter: time.Second}
}

// refusalOf is err as the caller will see it: itself where it is one of ours,
// busy where a dependency did not answer in time, else nothing of its text.
func refusalOf(err error, requestID string) *task.Error {
	var ours *task.Error
	var network *net.OpError
	switch {
	case errors.As(err, &ours) && statusOf(ours.Code) != http.StatusInternalServerError:
		return ours
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network):
		return Busy("the service is busy, try again")
	}
	return task.Refuse(codeInternal, "internal error, request id "+requestID)
}

// retryAfter returns the seconds after which a refused call may be repeated; 0 = no hint.
func retryAfter(refusal *task.Error) int {
	if refusal.RetryAfter <= 0 && statusOf(refusal.Code) == http.StatusServiceUnavailable {
		return 1
	}
	return int(retry.Seconds(refusal.RetryAfter))
}

// answer sends what the function returned.
func (req *request) answer(data any, err error) {
	if err != nil {
		req.fail(err)
		return
	}
	if req.call.status == http.StatusNoContent {
		req.write(http.StatusNoContent, nil)
		return
	}
	req.call.Body = nil // it is not needed any more
	if err := req.encode(req.call.status, api.Envelope{Code: req.call.status, Message: "success", Data: data}); err != nil {
		req.fail(fmt.Errorf("encode the answer: %w", err))
	}
}

// fail sends err in the shape and status that its kind has.
func (req *request) fail(err error) {
	req.err = err
	if req.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		// Without this net/http would send a 200, which a client that has
		// closed only its own half would read and believe.
		req.code = "client_gone"
		req.write(statusClientGone, nil)
		return
	}
	refusal := refusalOf(err, req.call.RequestID)
	req.code = refusal.Code
	status := statusOf(refusal.Code)
	h := req.w.Header()
	if seconds := retryAfter(refusal); seconds > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds))
	}
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Basic realm="sendonce"`)
	}
	err = req.encode(status, api.Envelope{Code: status, Message: refusal.Message, Error: refusal.Code, Fields: wireFields(refusal.Fields)})
	if err != nil {
		panic(err) // an envelope without data holds only strings
	}
}

func wireFields(fields []task.Field) []api.Field {
	var wire []api.Field
	for _, f := range fields {
		wire = append(wire, api.Field{Field: f.Name, Message: f.Message})
	}
	return wire
}

// encode writes an answer as JSON, or nothing when that fails. < > & stay as they
// are: answers are read by people too and are never HTML.
func (req *request) encode(status int, envelope api.Envelope) error {
	e := json.NewEncoder(bodyWriter(func(body []byte) { req.write(status, body) }))
	e.SetEscapeHTML(false)
	return e.Encode(envelope)
}

// bodyWriter gets the whole of what a json.Encoder makes, in one piece and without a
// copy.
type bodyWriter func(body []byte)

// Write never fails: how the writing went is kept elsewhere.
func (w bodyWriter) Write(body []byte) (int, error) {
	w(body)
	return len(body), nil
}

func (req *request) write(status int, body []byte) {
	if req.status != 0 { // a stream has begun; all that is left to do is to end it
		return
	}
	h := req.w.Header()
	h.Set("Cache-Control", "no-store")
	if body != nil {
		h.Set("Content-Type", contentTypeJSON)
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	req.status = status
	if !req.bodyRead {
		discardBody(req.w, req.r)
	}
	req.call.memory.answer(int64(len(body))) // a slow reader holds no more than this
	req.w.WriteHeader(status)
	n, err := req.w.Write(body)
	req.bytes = n
	if err != nil && req.err == nil {
		req.code, req.err = "client_gone", fmt.Errorf("write the answer: %w", err)
	}
}
