package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sendonce/sendonce/shared/task"
)

// SQLSTATE codes that the store acts on (PostgreSQL documentation, appendix A).
const (
	codeCheckViolation    = "23514"
	codeUniqueViolation   = "23505"
	CodeLockTimeout       = "55P03"
	CodeQueryCanceled     = "57014" // statement_timeout or pg_cancel_backend
	codeReadOnly          = "25006" // a standby, during a fail-over; or default_transaction_read_only
	codeProtocolViolation = "08P01"
	codeIdleTransaction   = "25P03" // idle_in_transaction_session_timeout, for example because this process was stopped
	codeUndefinedTable    = "42P01" // also with a wrong search_path
	codeUndefinedFunction = "42883"
)

func Busy() error {
	return task.Busy("the service is overloaded or its database is unavailable; repeat the same call later")
}

func KeyInFlight() error {
	return &task.Error{
		Code:       task.CodeKeyInFlight,
		Message:    "another call with this idempotency key is in progress; repeat the same call",
		RetryAfter: time.Second,
	}
}

func NotFound(noun string) error { return task.Refuse(task.CodeNotFound, "no such "+noun) }

// IsRowError reports whether a failed batch may succeed without some of its rows: the database will never accept a row
// (IsPoison), a lock was not granted within lock_timeout, or Postgres rolled back the transaction, such as after a deadlock.
func IsRowError(err error) bool {
	code := SQLState(err)
	return strings.HasPrefix(code, "40") || code == CodeLockTimeout || IsPoison(err)
}

// IsPoison reports whether err means that the database will never accept a row of the statement: the statement
// would change one row twice (SQLSTATE class 21), or the data is invalid (22), violates a constraint (23), or
// exceeds a limit of Postgres (54), such as the length of a key in an index.
func IsPoison(err error) bool {
	code := SQLState(err)
	return len(code) == 5 && slices.Contains([]string{"21", "22", "23", "54"}, code[:2])
}

// connectionLostError means that the connection of a transaction broke, and that the transaction may have been committed.
type connectionLostError struct{ error }

func (l connectionLostError) Unwrap() error { return l.error }

// WrapConnectionLost makes err a connectionLostError if conn is broken and the transaction may have been committed.
func WrapConnectionLost(conn *pgx.Conn, err error) error {
	if err != nil && conn.IsClosed() && !rejectedByPooler(err) {
		return connectionLostError{err}
	}
	return err
}

// rejectedByPooler reports whether PgBouncer closed the connection because it had no
// server connection for the transaction. In this case nothing was executed. PgBouncer uses one code for
// all its errors, so rejectedByPooler compares the message.
func rejectedByPooler(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == codeProtocolViolation &&
		(strings.Contains(pg.Message, "query_wait_timeout") || strings.Contains(pg.Message, "server_login_retry"))
}

// IsConnectionLost reports whether the connection broke during a transaction, which may have been committed.
func IsConnectionLost(err error) bool { return isType[connectionLostError](err) }

// neverConnected reports whether err means that no connection to the server was made.
func neverConnected(err error) bool { return isType[*pgconn.ConnectError](err) }

// isType reports whether err is or wraps an error of type E.
func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// MayHaveCommitted reports whether a transaction may be committed although its commit returned
// err. This is so if the commit may have reached the server, and the server did not report that the commit failed.
func MayHaveCommitted(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && !neverConnected(err) {
		return pg.SeverityUnlocalized != "ERROR" && !rejectedByPooler(err) // FATAL and PANIC end the connection, possibly after the commit
	}
	return !isType[*task.Error](err) && !neverConnected(err) && !pgconn.SafeToRetry(err)
}

// missingPartition reports whether a log table has no partition for the month of a row.
func missingPartition(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == codeCheckViolation && pg.ConstraintName == "" && strings.HasSuffix(pg.TableName, "_logs")
}

func SQLState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// TimedOutOnRowOf reports whether err is a lock timeout of a wait for a row or key of a table or index whose name begins
// with one of names: another transaction has locked the row or inserts the same key. The result is false for a lock of a
// whole table. It is also false if lc_messages is a language in which Postgres puts other quotes around the name.
func TimedOutOnRowOf(err error, names ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == CodeLockTimeout && slices.ContainsFunc(names, func(name string) bool { return strings.Contains(pg.Where, `"`+name) })
}

// Violates reports whether err is the violation of this unique constraint.
func Violates(err error, constraint string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == codeUniqueViolation && pg.ConstraintName == constraint
}

// Wrap adds the name of the failed operation to a database error. A transient error becomes server_busy and
// keeps its cause for the log. nil and errors of type task.Error are returned unchanged.
func Wrap(operation string, err error) error {
	switch {
	case err == nil || isType[*task.Error](err):
		return err
	case isTransient(err):
		return fmt.Errorf("%s: %w (%w)", operation, Busy(), err)
	default:
		return fmt.Errorf("%s: %w", operation, err)
	}
}

// isTransient reports whether the same call may succeed later. This includes errors whose cause an administrator
// must fix in the database: a wrong password, the settings of a role, a missing migration.
func isTransient(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && !neverConnected(err) {
		switch pg.Code[:2] {
		case "08", "53", "57", "40": // connection, resources, operator, rollback
			return true
		default:
			return slices.Contains([]string{CodeLockTimeout, codeReadOnly, codeIdleTransaction, codeUndefinedTable, codeUndefinedFunction}, pg.Code)
		}
	}
	return task.CodeOf(err) == task.CodeServerBusy || IsConnectionLost(err) || neverConnected(err) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err) || isType[*net.OpError](err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
