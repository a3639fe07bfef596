package fn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/auth"
	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/task"
)

// The error codes of HTTP requests; package task has those of the domain.
const (
	codeMethodNotAllowed     = "method_not_allowed"
	codeTooLarge             = "too_large"
	codeUnsupportedMediaType = "unsupported_media_type"
	codeTooManyCalls         = "too_many_calls"
	codeInternal             = "internal"
)

// statusClientGone is mainly for the log: usually the client has left and cannot receive it.
const statusClientGone = 499

// statusOf returns the HTTP status of an error code, 500 for an unknown code, which is a bug.
func statusOf(code string) int {
	switch code {
	case task.CodeInvalid, task.CodeBlocked:
		return http.StatusBadRequest
	case auth.CodeUnauthenticated:
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
	case auth.CodeTooManyAttempts, codeTooManyCalls, task.CodeQuota:
		return http.StatusTooManyRequests
	case task.CodeKeyReused:
		return http.StatusUnprocessableEntity
	case task.CodeServerBusy:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// refusalOf returns the error that the caller sees: the *task.Error in err's chain if its code is known, task.Busy if
// the call timed out or a dependency is unreachable, else an internal error without err's text.
func refusalOf(err error, requestID string) *task.Error {
	if ours, ok := errors.AsType[*task.Error](err); ok && statusOf(ours.Code) != http.StatusInternalServerError {
		return ours
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*net.OpError)) {
		return task.Busy("the service is busy, try again")
	}
	return task.Refuse(codeInternal, "internal error, request id "+requestID)
}

// retryAfter returns the value of Retry-After for a refused call, in seconds; 0 = no such header.
func retryAfter(refusal *task.Error) int {
	if refusal.RetryAfter <= 0 && statusOf(refusal.Code) == http.StatusServiceUnavailable {
		return 1
	}
	return int(retry.Seconds(refusal.RetryAfter))
}

const contentTypeJSON = "application/json; charset=utf-8"

func wireFields(fields []task.Field) []api.Field {
	var wire []api.Field
	for _, f := range fields {
		wire = append(wire, api.Field{Field: f.Name, Message: f.Message})
	}
	return wire
}

func tooLarge(max int64) *task.Error {
	return task.Refuse(codeTooLarge, fmt.Sprintf("the body must have at most %d bytes", max))
}
