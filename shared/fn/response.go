package fn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sendonce/sendonce/shared/api"
)

// respond sends what the function returned.
func (req *request) respond(data any, err error) {
	if err != nil {
		req.fail(err)
		return
	}
	if req.call.status == http.StatusNoContent {
		req.write(http.StatusNoContent, nil)
		return
	}
	req.call.Body = nil // frees the body while the response is encoded and written
	if err := req.encode(req.call.status, api.Envelope{Code: req.call.status, Message: "success", Data: data}); err != nil {
		req.fail(fmt.Errorf("encode the response: %w", err))
	}
}

// fail responds with an error, with the status of its code.
func (req *request) fail(err error) {
	req.err = err
	if req.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		// Otherwise net/http would send 200 to a client that has closed only its sending side.
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
		panic(err) // an envelope without data can always be encoded
	}
}

// encode writes a response as JSON. If encode returns an error, nothing was written. < > & are not
// escaped: people read responses too, and a response is never HTML.
func (req *request) encode(status int, envelope api.Envelope) error {
	e := json.NewEncoder(bodyWriter(func(body []byte) { req.write(status, body) }))
	e.SetEscapeHTML(false)
	return e.Encode(envelope)
}

// bodyWriter is a writer for a json.Encoder, which calls Write once with the whole output. So the output
// is not copied.
type bodyWriter func(body []byte)

// Write never fails: request.write records errors.
func (w bodyWriter) Write(body []byte) (int, error) {
	w(body)
	return len(body), nil
}

func (req *request) write(status int, body []byte) {
	if req.status != 0 { // a stream, socket or page has begun, so the status was sent
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
		limitUnreadBody(req.w, req.r)
	}
	req.call.memory.resize(int64(len(body))) // the other memory of the call is released while a slow client reads
	req.w.WriteHeader(status)
	n, err := req.w.Write(body)
	req.bytes = n
	if err != nil && req.err == nil {
		req.code, req.err = "client_gone", fmt.Errorf("write the response: %w", err)
	}
}
