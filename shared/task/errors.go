package task

import (
	"errors"
	"strings"
	"time"
)

// Error is a refusal that the caller can act on.
type Error struct {
	Code       string // one of the constants Code…; package fn maps it to an HTTP status
	Message    string
	Fields     []Field       // every bad field
	RetryAfter time.Duration // wait before repeating the call; 0 = no hint
}

// Field is one bad input field. Message says what is accepted.
type Field struct {
	Name    string
	Message string
}

// The codes of refusals, which are part of the wire contract.
const (
	CodeInvalid       = "invalid_request"
	CodeBlocked       = "content_blocked"
	CodeForbidden     = "forbidden"
	CodeNotFound      = "not_found"
	CodeNoDefault     = "no_default_content"   // the number has no default content
	CodeDefaultSent   = "default_already_sent" // the default content of the number was sent
	CodeDefaultExists = "default_exists"       // the number has a default content
	CodeKeyReused     = "idempotency_key_reused"
	CodeKeyInFlight   = "idempotency_in_flight"
	CodeStaleClaim    = "stale_claim"
	CodeConflict      = "conflict"
	CodeServerBusy    = "server_busy"
	CodeQuota         = "quota_exceeded"
)

// Error returns the message and each bad field.
func (e *Error) Error() string {
	if len(e.Fields) == 0 {
		return e.Message
	}
	fields := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		fields[i] = f.Name + " " + f.Message
	}
	return e.Message + ": " + strings.Join(fields, "; ")
}

// Refuse returns an Error without fields.
func Refuse(code, message string) *Error { return &Error{Code: code, Message: message} }

// Busy returns the refusal of a call that may succeed a moment later: 503 with Retry-After 1.
func Busy(message string) *Error {
	return &Error{Code: CodeServerBusy, Message: message, RetryAfter: time.Second}
}

// Invalid returns the refusal of bad input, or nil if fields is empty.
func Invalid(fields []Field) *Error {
	if len(fields) == 0 {
		return nil
	}
	return &Error{Code: CodeInvalid, Message: "the request has invalid fields", Fields: fields}
}

// CodeOf returns the code of the Error in err's chain, or "".
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}
