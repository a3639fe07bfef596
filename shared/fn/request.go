package fn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
	"github.com/sendonce/sendonce/shared/trigger"
)

const (
	bodyTimeout        = 10 * time.Second // from the beginning of a call
	refusedBodyTimeout = time.Second      // for a body that is not read
)

// request is the state of one HTTP request. The function sees only call.
type request struct {
	env     *Env
	w       http.ResponseWriter
	r       *http.Request
	mounted *mountedRoute // nil = no route
	call    Call
	start   time.Time

	function, route   string // never the raw path: it may hold a phone number
	releaseConnection func() // set once the call has a slot; it allows the connection to be closed
	bodyRead          bool   // to its end
	status            int    // 0 until the response is written
	bytes             int
	code              string // the error code of a failure
	err               error
}

func newRequest(env *Env, w http.ResponseWriter, r *http.Request, p *mountedRoute) *request {
	req := &request{env: env, w: w, r: r, mounted: p, start: time.Now(), route: "none"}
	if p != nil {
		req.function, req.route = p.function, p.pattern
	}
	req.call = Call{
		RequestID: requestID(r.Header.Get("X-Request-Id")),
		SourceIP:  sourceAddress(env.Config.TrustedProxies, r.RemoteAddr, r.Header.Values("X-Forwarded-For")),
		UserAgent: text.Cut(r.UserAgent(), 500),
		env:       env,
		r:         r,
		header:    w.Header(),
		status:    http.StatusOK,
	}
	if p != nil {
		req.call.roles, req.call.withinQueues = p.roles, p.withinQueues
	}
	w.Header().Set("X-Request-Id", req.call.RequestID)
	return req
}

// requestID returns the caller's id, or a new one if id is malformed or may contain a phone number,
// which must not be logged.
func requestID(id string) string {
	if task.ValidName(id, 50) && (task.MaskNumbers(id) == id || isRandomID(id)) {
		return id
	}
	return rand.Text()
}

// mobileNumber matches numbers of mainland China. About 1 % of random ids match it; 5 % have a run of 11 digits.
var mobileNumber = regexp.MustCompile(`1[3-9][0-9]{9}`)

// isRandomID reports whether id is a UUID, or 16 or 32 hexadecimal digits, that does not match
// mobileNumber: its runs of digits are then no phone numbers.
func isRandomID(id string) bool {
	hex := strings.ReplaceAll(id, "-", "")
	hasForm := len(id) == 36 && len(hex) == 32 || len(id) == len(hex) && (len(hex) == 16 || len(hex) == 32)
	return hasForm && !mobileNumber.MatchString(id) && strings.Trim(hex, "0123456789abcdefABCDEF") == "" && strings.Trim(hex, "0123456789") != ""
}

// readBody reads the whole body, at most the route's maxBody, once there is memory for it. The body
// must arrive within bodyTimeout of the start of the call. This deadline is removed before the
// handler runs: it would cancel the context of a long poll.
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
		return req.setReadDeadline(req.start.Add(bodyTimeout + time.Since(began))) // the wait for memory does not count
	})
	if err != nil {
		return bodyError(err, p)
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

// readUncharged reads a small body for which no memory is charged, within bodyTimeout.
func (req *request) readUncharged(p *mountedRoute) ([]byte, error) {
	if req.r.ContentLength > p.maxBody {
		return nil, tooLarge(p.maxBody)
	}
	if err := req.setReadDeadline(req.start.Add(bodyTimeout)); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(req.w, req.r.Body, p.maxBody))
	if err != nil {
		return nil, bodyError(err, p)
	}
	req.bodyRead = true
	return body, req.setReadDeadline(time.Time{})
}

// bodyError returns the error to respond with when the body could not be read.
func bodyError(err error, p *mountedRoute) error {
	var large *http.MaxBytesError
	var refused *task.Error
	switch {
	case errors.As(err, &large):
		return tooLarge(p.maxBody)
	case errors.As(err, &refused):
		return refused
	case p.event: // not a 4xx, which would make the event a dead letter
		return errors.Join(Busy("the body did not arrive in full; repeat the same call later"), err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return task.Invalid([]task.Field{{Name: "body", Message: fmt.Sprintf("did not arrive within %v", bodyTimeout)}})
	default:
		return task.Invalid([]task.Field{{Name: "body", Message: "broke off before its end"}})
	}
}

func (req *request) setReadDeadline(deadline time.Time) error {
	err := http.NewResponseController(req.w).SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("read deadline: %w", err)
	}
	return nil
}

// limitUnreadBody sets a deadline for the rest of an unread body. net/http reads up to 256 KiB of it,
// so that the connection can be used again.
func limitUnreadBody(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBodyTimeout)) // fails on a connection that has ended
	}
}

// checkContentType checks the type of a body of JSON; the handlers of pages parse theirs.
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

// end recovers a panic of the function, writes the log line of the call and counts the call. It
// panics with http.ErrAbortHandler again, for the server.
func (req *request) end() {
	abort := false
	if r := recover(); r != nil {
		abort = r == http.ErrAbortHandler
		req.call.Log("stack", string(debug.Stack()))
		err := fmt.Errorf("panic: %v", r)
		if abort {
			req.status, req.code, req.err = statusClientGone, "aborted", err
		} else {
			req.fail(err)
		}
	}
	req.log()
	req.count()
	if abort {
		panic(http.ErrAbortHandler)
	}
	if req.env.limiter.isDraining() {
		// The framework's server cannot be shut down: the process exits once no call is left,
		// and what is still in the buffer of the server would be lost.
		_ = http.NewResponseController(req.w).Flush() // fails where the client has left
	}
}

// log writes the log line of the call.
func (req *request) log() {
	unlogged, log := req.nextLine()
	if !log {
		return
	}
	attrs := make([]slog.Attr, 0, 16)
	attrs = append(attrs,
		slog.String("request_id", req.call.RequestID), slog.String("function", req.function), slog.String("method", task.MaskNumbers(req.r.Method)),
		slog.String("route", req.route), slog.Int("status", req.status),
		slog.Float64("ms", float64(time.Since(req.start).Microseconds())/1000), slog.Int("bytes", req.bytes),
		slog.String("caller", task.MaskNumbers(req.call.Caller.Name)), slog.String("source_ip", req.call.SourceIP))
	if req.err != nil {
		cause := req.err.Error()
		if req.status < http.StatusInternalServerError {
			cause = task.MaskNumbers(cause) // it may repeat names of the caller's choice
		}
		attrs = append(attrs, slog.String("error", req.code), slog.String("cause", cause))
	}
	if unlogged > 0 {
		attrs = append(attrs, slog.Uint64("unlogged", unlogged))
	}
	if n := req.call.itemsFailed; n > 0 {
		attrs = append(attrs, slog.Int("items_failed", n))
	}
	level := slog.LevelInfo
	if req.status >= 500 || req.code == codeInternal {
		level = slog.LevelError
	}
	req.env.Log.LogAttrs(req.r.Context(), level, "call", append(attrs, req.call.attrs...)...)
}

// failureKind is the key by which the log lines of failed calls are limited.
type failureKind struct{ function, code string }

// nextLine reports whether to log the call. Two kinds of calls have one line a minute for each
// function and error code: failed calls without a known caller, which anybody can repeat, and
// events that a busy function refuses, which are delivered again. unlogged is how many calls were
// not logged since the last line.
func (req *request) nextLine() (unlogged uint64, log bool) {
	busy := req.mounted != nil && req.mounted.event && req.code == task.CodeServerBusy
	if busy || req.err != nil && req.call.Caller.Name == "" {
		return req.env.failures.Next(failureKind{req.function, req.code})
	}
	return 0, true
}

// count counts a call that has ended.
func (req *request) count() {
	req.env.Metrics().Calls.Observe(req.function, req.route, req.status, time.Since(req.start))
}
