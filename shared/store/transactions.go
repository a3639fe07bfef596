package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Waits between the tries of a transaction whose outcome is unknown.
const (
	retryFirst   = 20 * time.Millisecond
	retryLongest = 500 * time.Millisecond
)

// RetryLostCommit runs a transaction. If the response to its commit is lost, it runs the
// transaction again until it succeeds, fails permanently or ctx ends. run must be able to
// recognise the effects of an earlier try: again reports that one may have been committed or may
// be committed later. When RetryLostCommit returns without an error, what run read is durable.
func (db *DB) RetryLostCommit(ctx context.Context, run func(again bool) error) error {
	lost := false
	defer func() {
		if lost { // the try with the lost response may have written events
			db.OnEvents()
			db.onFailed()
		}
	}()
	for wait := retryFirst; ; wait = min(2*wait, retryLongest) {
		err := db.WithPartitions(ctx, func() error { return run(lost) })
		if isConnectionLost(err) {
			lost = true
		}
		if err == nil && lost {
			err = db.WaitForStandby(ctx)
		}
		if err == nil || !lost || !isTransient(err) && !isOwnRetry(err) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// WaitForStandby returns when everything that this session has seen is on the synchronous
// standby, if there is one. After a restart of the primary, or when a session is terminated
// while it waits for the standby, commits are visible that the standby does not have. A later
// commit waits for them.
func (db *DB) WaitForStandby(ctx context.Context) error {
	_, err := db.Hot.Exec(ctx, "select pg_logical_emit_message(true, 'sendonce', '')")
	return err
}

// isOwnRetry reports whether a task's id was inserted by an earlier try of the same transaction,
// whose commit was still under way.
func isOwnRetry(err error) bool {
	return Violates(err, "tasks_pkey") || Violates(err, "task_live_pkey")
}

// WithPartitions runs a transaction. When a log row finds no partition for its month, it makes
// the partitions and runs the transaction once more.
func (db *DB) WithPartitions(ctx context.Context, run func() error) error {
	err := run()
	if !missingPartition(err) {
		return err
	}
	if err := db.MakeLogPartitions(ctx); err != nil {
		return err
	}
	return run()
}

// MakeLogPartitions makes missing partitions of the logs for this month and the next three.
func (db *DB) MakeLogPartitions(ctx context.Context) error {
	_, err := db.Hot.Exec(ctx, "select make_log_partitions(3)")
	return err
}

// SetLockTimeoutSQL limits how long a transaction waits for a lock.
const SetLockTimeoutSQL = `select set_config('lock_timeout', $1, true)`

// PlanOnceSQL makes the statements of a transaction use generic plans. It is for inserts and claims,
// whose best plans do not depend on their parameters. Planning an insert each time takes a third of a
// small flush of tasks and a sixth of one of messages.
const PlanOnceSQL = `select ` + planOnce

// LockTimeoutAndPlanOnceSQL is SetLockTimeoutSQL and PlanOnceSQL as one statement.
const LockTimeoutAndPlanOnceSQL = SetLockTimeoutSQL + `, ` + planOnce

const planOnce = `set_config('plan_cache_mode', 'force_generic_plan', true)`

// RollbackOn ends a failed transaction, so that its locks are free at once, and returns err.
// An error of the rollback itself is ignored: a connection that is still in a transaction is
// closed on release.
func RollbackOn(conn *pgx.Conn, err error) error {
	if err != nil && !conn.IsClosed() {
		Rollback(conn)
	}
	return err
}

// Commit ends a transaction that only read under locks. Where commits wait for a standby, a
// commit also ensures that the standby has what was read; a rollback would not.
func Commit(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "commit")
	return err
}

func Rollback(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback")
}

// How long an insert waits for another instance's uncommitted key before it fails with
// idempotency_in_flight. A row that is run alone has already waited once.
const (
	KeyTimeout      = "250ms"
	KeyTimeoutAlone = "20ms"
)
