package fn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/task"
	"github.com/sendonce/sendonce/shared/text"
)

// exchange is one request on its way through fn: what the function sees of it
// (call) and what the log line will say.
type exchange struct {
	env   *Env
	w     http.ResponseWriter
	r     *http.Request
	call  Call
	start time.Time

	function, route string // never the raw path: it may hold a phone number
	carried         func() // once it has a seat: lets its connection be closed
	bodyRead        bool   // to its end
	status          int    // 0 until answered
	bytes           int
	code            string // the error word, on failures
	err             error
}

func newExchange(env *Env, w http.ResponseWriter, r *http.Request, p *place) *exchange {
	x := &exchange{env: env, w: w, r: r, start: time.Now(), route: "none"}
	if p != nil {
		x.function, x.route = p.function, p.pattern
	}
	x.call = Call{
		RequestID: requestID(r.Header.Get("X-Request-Id")),
		SourceIP:  sourceAddress(env.Config.TrustedProxies, r.RemoteAddr, r.Header.Values("X-Forwarded-For")),
		UserAgent: text.Cut(r.UserAgent(), 500),
		env:       env,
		r:         r,
		answer:    w.Header(),
		status:    http.StatusOK,
	}
	if p != nil {
		x.call.roles, x.call.within = p.roles, p.within
	}
	w.Header().Set("X-Request-Id", x.call.RequestID)
	return x
}

// requestID keeps the caller's id when it is harmless, else makes one.
func requestID(given string) string {
	if validRequestID(given) {
		return given
	}
	return rand.Text()
}

func validRequestID(id string) bool {
	if id == "" || len(id) > 50 {
		return false
	}
	return strings.IndexFunc(id, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-')
	}) < 0
}

// readBody takes the whole body within the route's bound, once there is room for
// it. Its time begins with the call and is bounded apart from the handler's: a slow
// sender must not hold a call for long, and the deadline must be gone before a long
// poll, whose context it would cancel.
func (x *exchange) readBody(ctx context.Context, p *place) error {
	if x.r.ContentLength > p.maxBody {
		return tooLarge(p.maxBody)
	}
	if x.r.Body == nil || x.r.Body == http.NoBody {
		x.bodyRead = true
		return x.readWithin(time.Time{})
	}
	reader, waiting := bodyReader{hold: x.call.hold, charge: p.bodyCharge}, time.Now()
	body, err := reader.read(ctx, http.MaxBytesReader(x.w, x.r.Body, p.maxBody), x.r.ContentLength, func() error {
		return x.readWithin(x.start.Add(bodyTimeout + time.Since(waiting)))
	})
	var large *http.MaxBytesError
	var refused *task.Error
	switch {
	case errors.As(err, &large):
		return tooLarge(p.maxBody)
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, os.ErrDeadlineExceeded):
		return task.Invalid([]task.Field{{Name: "body", Message: fmt.Sprintf("did not arrive within %v", bodyTimeout)}})
	case err != nil:
		return task.Invalid([]task.Field{{Name: "body", Message: "broke off before its end"}})
	}
	x.bodyRead = true
	if err := x.readWithin(time.Time{}); err != nil {
		return err
	}
	if len(body) == 0 {
		return nil
	}
	x.call.Body = body
	return checkContentType(x.r.Header, &p.Route)
}

func (x *exchange) readWithin(deadline time.Time) error {
	err := http.NewResponseController(x.w).SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("read deadline: %w", err)
	}
	return nil
}

// dropBody gives the rest of a body that nobody will read a moment to arrive, so
// that the connection can be used again. Without it net/http would read on, up to
// 256 KiB of it, for as long as the whole call may take.
func dropBody(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBodyTimeout)) // fails on a connection that has ended
	}
}

func tooLarge(max int64) *task.Error {
	return task.Refuse(codeTooLarge, fmt.Sprintf("the body must have at most %d bytes", max))
}

func checkContentType(h http.Header, r *Route) error {
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return task.Refuse(codeUnsupportedMediaType, "the body must not have a Content-Encoding")
	}
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset, given := params["charset"]
	ok := kind == "application/json" || r.event && kind == "application/cloudevents+json" || r.batch && isBatch(kind)
	if err != nil || !ok || given && !strings.EqualFold(charset, "utf-8") {
		return task.Refuse(codeUnsupportedMediaType, "Content-Type must be application/json in UTF-8")
	}
	return nil
}

// end recovers a panic of the function, writes the one log line of the call and
// counts it. http.ErrAbortHandler goes on to the server, which it is meant for.
func (x *exchange) end() {
	abort := false
	if r := recover(); r != nil {
		abort = r == http.ErrAbortHandler
		x.call.Log("stack", string(debug.Stack()))
		err := fmt.Errorf("panic: %v", r)
		if abort {
			x.status, x.code, x.err = statusClientGone, "aborted", err
		} else {
			x.fail(err)
		}
	}
	x.log()
	x.env.Metrics().answered(x)
	if abort {
		panic(http.ErrAbortHandler)
	}
	if x.env.gate.isDraining() {
		// A host that cannot be shut down ends once no call is left: what is still
		// in the server's buffer then would be lost.
		_ = http.NewResponseController(x.w).Flush() // fails where nobody is left to read
	}
}

// longNumber may be a phone number.
const longNumber = 7

// maskNumbers hides the middle of each run of digits that may be a phone number.
func maskNumbers(text string) string {
	var b strings.Builder
	for text != "" {
		start := strings.IndexFunc(text, isDigit)
		if start < 0 {
			break
		}
		rest := strings.TrimLeftFunc(text[start:], isDigit)
		end := len(text) - len(rest)
		b.WriteString(text[:start])
		if number := text[start:end]; len(number) < longNumber {
			b.WriteString(number)
		} else {
			b.WriteString(task.MaskPhone(number))
		}
		text = rest
	}
	return b.String() + text
}

func isDigit(c rune) bool { return '0' <= c && c <= '9' }

func (x *exchange) log() {
	attrs := []any{
		"request_id", x.call.RequestID, "function", x.function, "method", x.r.Method, "route", x.route,
		"status", x.status, "ms", float64(time.Since(x.start).Microseconds()) / 1000, "bytes", x.bytes,
		"caller", x.call.Caller.Name, "source_ip", x.call.SourceIP,
	}
	if x.err != nil {
		cause := x.err.Error()
		if x.status < http.StatusInternalServerError {
			cause = maskNumbers(cause) // it may repeat names of the caller's choice
		}
		attrs = append(attrs, "error", x.code, "cause", cause)
	}
	if n := x.call.itemsFailed; n > 0 {
		attrs = append(attrs, "items_failed", n)
	}
	level := slog.LevelInfo
	if x.status >= 500 || x.code == codeInternal {
		level = slog.LevelError
	}
	x.env.Log.Log(x.r.Context(), level, "call", append(attrs, x.call.attrs...)...)
}
