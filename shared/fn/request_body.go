package fn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/trigger"
)

// readBody reads the whole body, at most the route's maxBody, once memory is reserved for it. The body
// must arrive within bodyTimeout of the start of the call; the wait for memory before the first byte does
// not count. The deadline is removed before the handler runs, since it would cancel the context of a long
// poll.
func (req *request) readBody(ctx context.Context, p *mountedRoute) error {
	if req.r.ContentLength > p.maxBody {
		return tooLarge(p.maxBody)
	}
	if req.r.Body == nil || req.r.Body == http.NoBody {
		req.bodyRead = true
		return req.setReadDeadline(time.Time{})
	}
	reader, began := bodyReader{memory: req.call.memory, charge: p.bodyCharge}, time.Now()
	body, err := reader.read(ctx, http.MaxBytesReader(req.w, req.r.Body, p.maxBody), req.r.ContentLength, func() error {
		return req.setReadDeadline(req.start.Add(bodyTimeout + time.Since(began)))
	})
	if err != nil {
		return bodyError(err, p.maxBody)
	}
	req.bodyRead = true
	if err := req.setReadDeadline(time.Time{}); err != nil {
		return err
	}
	if len(body) == 0 {
		return nil
	}
	req.call.Body = body
	return checkContentType(req.r.Header, &p.Route)
}

// readUncharged reads a small body without charging memory for it. The body must arrive within bodyTimeout.
func (req *request) readUncharged(maxBody int64) ([]byte, error) {
	if req.r.ContentLength > maxBody {
		return nil, tooLarge(maxBody)
	}
	if err := req.setReadDeadline(req.start.Add(bodyTimeout)); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(req.w, req.r.Body, maxBody))
	if err != nil {
		return nil, bodyError(err, maxBody)
	}
	req.bodyRead = true
	return body, req.setReadDeadline(time.Time{})
}

// bodyError returns the error to respond with when the body could not be read.
func bodyError(err error, maxBody int64) error {
	var large *http.MaxBytesError
	var refused *task.Error
	switch {
	case errors.Is(err, context.Canceled): // the client has left
		return err
	case errors.As(err, &large):
		return tooLarge(maxBody)
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, http.ErrLineTooLong), strings.Contains(err.Error(), "chunk"): // net/http exports only one of these errors
		return task.Invalid([]task.Field{{Name: "body", Message: "is not valid in the chunked transfer coding of HTTP"}})
	default: // not a 4xx: the caller may repeat the same call, and the trigger does not make a dead letter of an event
		return errors.Join(task.Busy(fmt.Sprintf("the body did not arrive in full within %v; repeat the same call later", bodyTimeout)), errors.New(task.MaskNumbers(err.Error()))) // net/http repeats what the caller sent
	}
}

func (req *request) setReadDeadline(deadline time.Time) error {
	err := http.NewResponseController(req.w).SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("read deadline: %w", err)
	}
	return nil
}

// checkContentType requires JSON in UTF-8 without compression. The bodies of pages are not checked.
func checkContentType(h http.Header, r *Route) error {
	if r.page != nil {
		return nil
	}
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return task.Refuse(codeUnsupportedMediaType, "the body must not have a Content-Encoding")
	}
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset, hasCharset := params["charset"]
	ok := kind == "application/json" || r.event && kind == "application/cloudevents+json" || r.batch && kind == trigger.BatchType
	if err != nil || !ok || hasCharset && !strings.EqualFold(charset, "utf-8") {
		return task.Refuse(codeUnsupportedMediaType, "Content-Type must be application/json in UTF-8")
	}
	return nil
}
