package fn

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/sendonce/sendonce/shared/task"
)

// end recovers a panic of the function and responds with 500, writes the log line of the call and counts
// the call. If the panic was http.ErrAbortHandler, end panics with it again, so that the server aborts
// the response.
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
		_ = http.NewResponseController(req.w).Flush() // fails if the client has left
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
		slog.String("request_id", req.call.RequestID), slog.String("function", req.function),
		slog.String("method", task.MaskNumbers(req.r.Method)), // a client may send any method
		slog.String("route", req.route), slog.Int("status", req.status),
		slog.Float64("ms", float64(time.Since(req.start).Microseconds())/1000), slog.Int("bytes", req.bytes),
		slog.String("caller", task.MaskNumbers(req.call.Caller.Name)), slog.String("source_ip", req.call.SourceIP))
	if req.err != nil {
		cause := req.err.Error()
		if req.status < http.StatusInternalServerError {
			cause = task.MaskNumbers(cause) // the cause may repeat names that the caller chose
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

// nextLine reports whether to log the call. Two kinds of calls share one line a minute for each
// function and error code: failed calls without a known caller, which anybody can repeat, and events
// that are refused with 503, which are delivered again. unlogged is how many of them were not logged
// since the last line.
func (req *request) nextLine() (unlogged uint64, log bool) {
	busy := req.event && req.code == task.CodeServerBusy
	if busy || req.err != nil && req.call.Caller.Name == "" {
		return req.env.failures.Next(failureKind{req.function, req.code})
	}
	return 0, true
}

// count counts a call that has ended.
func (req *request) count() {
	req.env.Metrics().Calls.Observe(req.function, req.route, req.status, time.Since(req.start))
}
