package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The first and the longest wait between the tries of a transaction whose outcome is unknown. Each wait is twice the one before.
const (
	retryFirst   = 20 * time.Millisecond
	retryLongest = 500 * time.Millisecond
)

// RetryLostCommit runs a transaction. If the response to its commit is lost, RetryLostCommit runs the
// transaction again until it succeeds, fails permanently or ctx ends. If again is true, an earlier try may
// have been committed or may be committed later: run must look for the effects of that try.
// If there is no error, the effects that run made or found are durable: the synchronous standby, if there is one, has
// them, even if somebody has cancelled the wait of the commit for the standby.
func (db *DB) RetryLostCommit(ctx context.Context, run func(again bool) error) error {
	lost := false
	defer func() {
		if lost { // the try with the lost response may have written events or failures
			db.OnEvents()
			db.onFailed()
		}
	}()
	for wait := retryFirst; ; wait = min(2*wait, retryLongest) {
		cancelledSyncs := db.CancelledSyncs()
		err := db.WithPartitions(ctx, func() error { return run(lost) })
		if IsConnectionLost(err) || db.CancelledSyncs() != cancelledSyncs {
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

// WaitForStandbySQL makes the commit of its transaction wait for the synchronous standby, also if the transaction changes
// nothing.
const WaitForStandbySQL = `select pg_logical_emit_message(true, 'sendonce', '')`

// WaitForStandby returns when the synchronous standby, if there is one, has everything that was visible
// before the call. WaitForStandby makes a commit, and the standby confirms this commit only after all earlier ones. A
// commit that the standby does not have can be visible: after a restart of the primary, or after a session that waited
// for the standby was cancelled or terminated.
func (db *DB) WaitForStandby(ctx context.Context) error {
	for {
		cancelled := db.CancelledSyncs()
		_, err := db.Hot.Exec(ctx, WaitForStandbySQL)
		if err != nil || db.CancelledSyncs() == cancelled {
			return err
		}
	}
}

// Durably calls run. If run succeeds, and meanwhile somebody has cancelled the wait of a commit for the standby, Durably
// waits for the standby. If db is nil, Durably only calls run.
func (db *DB) Durably(ctx context.Context, run func() error) error {
	if db == nil {
		return run()
	}
	before := db.CancelledSyncs()
	err := run()
	if err == nil && db.CancelledSyncs() != before {
		err = Wrap("wait for standby", db.WaitForStandby(ctx))
	}
	return err
}

// CancelledSyncs counts the commits whose wait for the synchronous standby somebody has cancelled, such as an operator
// with pg_cancel_backend. Postgres reports success for such a commit, although a fail-over may lose it.
func (db *DB) CancelledSyncs() uint64 { return db.cancelledSyncs.Load() }

// isOwnRetry reports whether the transaction failed because an earlier try of it had inserted the id of a
// task: the earlier try was not committed yet when this try looked for it.
func isOwnRetry(err error) bool {
	return Violates(err, "tasks_pkey") || Violates(err, "task_live_pkey")
}

// WithPartitions runs a transaction. If the transaction fails because a log row has no partition for its month,
// WithPartitions makes the partitions and runs the transaction once more.
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

// MakeLogPartitions makes the missing partitions of the logs for this month and the next three.
func (db *DB) MakeLogPartitions(ctx context.Context) error {
	_, err := db.Hot.Exec(ctx, "select make_log_partitions(3)")
	return err
}

// SetLockTimeoutSQL limits how long a transaction waits for each lock.
const SetLockTimeoutSQL = `select set_config('lock_timeout', $1, true)`

// PlanOnceSQL makes the statements of a transaction use generic plans. It is for inserts and claims,
// whose best plans do not depend on their parameters. Planning each insert would take a third of the
// time of a small flush of tasks, and a sixth of the time of a small flush of messages.
const PlanOnceSQL = `select ` + planOnce

// LockTimeoutAndPlanOnceSQL is SetLockTimeoutSQL and PlanOnceSQL as one statement.
const LockTimeoutAndPlanOnceSQL = SetLockTimeoutSQL + `, ` + planOnce

const planOnce = `set_config('plan_cache_mode', 'force_generic_plan', true)`

// RollbackOn returns err. If err is not nil, it first ends the transaction, so that the locks are free at once.
func RollbackOn(conn *pgx.Conn, err error) error {
	if err != nil && !conn.IsClosed() {
		Rollback(conn)
	}
	return err
}

// Commit ends a transaction that locked and read rows, and changed nothing. Unlike a rollback, Commit waits until the
// standby, if there is one, has what was read.
func Commit(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "commit")
	return err
}

// Rollback ends a transaction. It ignores errors: if a released connection is still in a transaction, the pool
// closes the connection.
func Rollback(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback")
}

// How long an insert waits for an uncommitted transaction that has inserted the same key, before it fails with
// idempotency_in_flight. KeyTimeoutAlone is for a row that is inserted alone after a flush failed: it has already waited.
const (
	KeyTimeout      = "250ms"
	KeyTimeoutAlone = "20ms"
)
