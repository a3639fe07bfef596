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
	codeLockTimeout       = "55P03"
	codeQueryCanceled     = "57014" // statement_timeout
	codeReadOnly          = "25006" // a standby, during a failover
	codeProtocolViolation = "08P01"
	codeUndefinedTable    = "42P01" // also where search_path leads elsewhere
	codeUndefinedFunction = "42883"
)

func errBusy() error {
	return &task.Error{
		Code:       task.CodeServerBusy,
		Message:    "the service is overloaded or its database is away; repeat the same call later",
		RetryAfter: time.Second,
	}
}

func errKeyInFlight() error {
	return &task.Error{
		Code:       task.CodeKeyInFlight,
		Message:    "another call with this idempotency key is under way; repeat the same call",
		RetryAfter: time.Second,
	}
}

func errNotFound(what string) error {
	return task.Refuse(task.CodeNotFound, "no such "+what)
}

// oneRowsFault tells whether a failed flush may succeed for other rows: bad
// data, a lock that one row waits for, a deadlock.
func oneRowsFault(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code[:2] {
	case "22", "23", "40":
		return true
	default:
		return pg.Code == codeLockTimeout
	}
}

// lostAnswer wraps the error of a transaction whose connection broke, so that
// nobody knows whether it was committed.
type lostAnswer struct{ error }

func (l lostAnswer) Unwrap() error { return l.error }

// markLost marks err when the connection it came over is broken.
func markLost(conn *pgx.Conn, err error) error {
	if err != nil && conn.IsClosed() && !turnedAway(err) {
		return lostAnswer{err}
	}
	return err
}

// turnedAway tells whether PgBouncer had no server for a transaction and closed
// the connection: nothing of it was run. It has one code for all that it says.
func turnedAway(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeProtocolViolation &&
		(strings.Contains(pg.Message, "query_wait_timeout") || strings.Contains(pg.Message, "server_login_retry"))
}

func isLost(err error) bool {
	var lost lostAnswer
	return errors.As(err, &lost)
}

// mayBeCommitted tells whether err leaves open what became of a transaction that was
// to commit: it reached a server, and no server said that it failed.
func mayBeCommitted(err error) bool {
	var pg *pgconn.PgError
	var own *task.Error
	if errors.As(err, &pg) {
		return pg.SeverityUnlocalized != "ERROR" && !turnedAway(err) // but the end of the connection
	}
	return !errors.As(err, &own) && !neverReached(err) && !pgconn.SafeToRetry(err)
}

// neverReached tells whether no connection could be made.
func neverReached(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}

// missingPartition tells whether a log row found no partition of its month.
func missingPartition(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeCheckViolation && pg.ConstraintName == "" && strings.HasSuffix(pg.TableName, "_logs")
}

func pgCode(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeUniqueViolation && pg.ConstraintName == constraint
}

// failed wraps an error of the database once: what will pass becomes
// server_busy, with its cause for the log; a mistake of ours stays one.
func failed(doing string, err error) error {
	var own *task.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return err
	case passing(err):
		return fmt.Errorf("%s: %w (%w)", doing, errBusy(), err)
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
}

// passing tells whether err is the database's state of this moment. That is also what an
// administrator has to change there: a password, the settings of a role, a migration.
func passing(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !neverReached(err) {
		switch pg.Code[:2] {
		case "08", "53", "57", "40": // connection, resources, operator, rollback
			return true
		default:
			return slices.Contains([]string{codeLockTimeout, codeReadOnly, codeUndefinedTable, codeUndefinedFunction}, pg.Code)
		}
	}
	var own *task.Error
	var network *net.OpError
	return errors.As(err, &own) && own.Code == task.CodeServerBusy || isLost(err) || neverReached(err) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
