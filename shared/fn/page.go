package fn

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	pageTimeout = 20 * time.Second
	maxForm     = 256 << 10 // bytes of a form
	pageMemory  = 512 << 10 // bytes reserved when the page of a logged-in visitor starts; the API calls of the page reserve their own

	// For visitors who are not logged in. Each address has its own limit, so no address can keep others from the login.
	// When the limit anonymousPages is reached, a further request aborts the oldest response that is still being written.
	anonymousPages      = 256              // in progress at once
	anonymousPerAddress = 8                // in progress at once; further requests of the address wait
	anonymousWait       = 2 * time.Second  // how long a request waits; then it is refused with 503
	anonymousPageTime   = 20 * time.Second // how long the client may take to read the response
	maxAnonymousForm    = 8 << 10          // bytes
)

// Page returns a route for browsers: handle writes the response, which may be of any type. Everybody may
// request the page; handle checks whether the visitor is logged in. Requests from other origins, also
// those of SENDONCE_STREAM_ORIGINS, are refused unless they are GET.
func Page(handle func(w http.ResponseWriter, v *Visit)) Route {
	return Route{maxBody: maxForm, timeout: pageTimeout, page: handle}
}

// page handles a request for a page. It returns an error, to be sent as JSON, only if the handler was not called.
func (req *request) page(p *mountedRoute) error {
	if err := p.mux.pageOrigins.check(req.r, p.changesState); err != nil {
		return err
	}
	if err := req.resumeSession(req.r.Context()); err != nil {
		return err
	}
	form, err := req.readForm(req.r.Context(), p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(req.r.Context(), p.timeout)
	defer cancel()
	leave, err := req.enterPage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	w := &pageWriter{ResponseWriter: req.w, req: req}
	defer w.end()
	w.Header().Set("Cache-Control", "no-store") // the handler may replace this
	r := req.r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(form))
	memory := &visitMemory{call: req.call.memory, charged: pageMemory}
	p.page(w, &Visit{Request: r, Caller: req.call.Caller, req: req, api: p.mux.api, memory: memory})
	if req.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return nil
}

// readForm reads the body. It is called before enterPage, so that slow bodies do not keep other visitors out. When the
// body of a visitor who is logged in has arrived, the session is resumed again: its caller may have been revoked or
// changed.
func (req *request) readForm(ctx context.Context, p *mountedRoute) ([]byte, error) {
	if req.call.Caller.Name == "" {
		return req.readUncharged(min(p.maxBody, maxAnonymousForm))
	}
	if err := req.acquireSlot(p); err != nil {
		return nil, err
	}
	var err error
	if req.call.memory, err = req.env.budget.enter(req.call.Caller.QuotaName(), req.call.May(Admin), false); err != nil {
		return nil, err
	}
	if err := req.readBodyWithoutSlot(ctx, p, req.resumeSession); err != nil {
		return nil, err
	}
	req.call.memory.pause() // the page may make large calls, which would wait for this call
	return req.call.Body, nil
}

// enterPage reserves memory for the page of a visitor who is logged in, until the call ends. For any other
// visitor, enterPage acquires a slot of the address and one of anonymousPages, which leave releases.
func (req *request) enterPage(ctx context.Context) (leave func(), err error) {
	if req.call.Caller.Name != "" {
		return func() {}, req.call.Reserve(ctx, pageMemory)
	}
	ctx, cancel := context.WithTimeout(ctx, anonymousWait)
	defer cancel()
	done, err := req.env.anonymousSlots.acquire(ctx, httpserver.ClientNetwork(req.call.SourceIP).String())
	if err != nil {
		return nil, task.Busy("too many requests from this address are in progress, try again")
	}
	if !req.env.anonymousPages.TryAcquire(1) {
		req.env.anonymousResponses.AbortOldest()
		if req.env.anonymousPages.Acquire(ctx, 1) != nil {
			done()
			return nil, task.Busy("too many visitors who are not logged in, try again")
		}
	}
	return func() { req.env.anonymousPages.Release(1); done() }, nil
}

// pageWriter records the status and the bytes of a page for the log.
type pageWriter struct {
	http.ResponseWriter
	req *request
}

func (w *pageWriter) WriteHeader(status int) {
	if w.req.status == 0 {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// begin records the status. If the visitor is not logged in, it limits how long the client may take to read the
// response.
func (w *pageWriter) begin(status int) {
	w.req.status = status
	if w.req.call.Caller.Name == "" {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(anonymousPageTime)) // fails on a connection that has ended
		w.req.env.anonymousResponses.Add(w.ResponseWriter)
	}
}

func (w *pageWriter) end() { w.req.env.anonymousResponses.Remove(w.ResponseWriter) }

func (w *pageWriter) Write(b []byte) (int, error) {
	if w.req.status == 0 {
		w.begin(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(b)
	w.req.bytes += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *pageWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
