package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockID is the advisory lock that allows one Up at a time in a database.
const lockID = 0x73656e646f6e6365

const lockNotAvailable = "55P03"

// lockWaitSQL sets a lock_timeout of one minute for the transaction, unless the connection has set one.
const lockWaitSQL = `
SELECT set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN '1min' ELSE current_setting('lock_timeout') END, true)`

// lock acquires the lock for the session. It waits only for a limited time, because any
// user of the database can hold this lock.
func lock(ctx context.Context, conn *pgx.Conn) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(lockWaitSQL)
		batch.Queue("SELECT pg_advisory_lock($1)", lockID)
		return tx.SendBatch(ctx, &batch).Close()
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == lockNotAvailable {
		return errors.Join(err, lockHolder(ctx, conn))
	}
	return err
}

const holderSQL = `
SELECT a.pid, a.usename::text, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'a local socket'),
	coalesce(to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), 'a time that this user may not see')
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.classid::bigint << 32 | l.objid::bigint = $1`

// lockHolder returns an error that names the session which holds the lock.
func lockHolder(ctx context.Context, conn *pgx.Conn) error {
	var pid int32
	var user, application, host, since string
	err := conn.QueryRow(ctx, holderSQL, lockID).Scan(&pid, &user, &application, &host, &since)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errors.New("the session that held the lock has just ended: run migrate again")
	case err != nil:
		return fmt.Errorf("look for the session that holds the lock: %w", err)
	}
	return fmt.Errorf("process %d of user %s (application %q, from %s, connected since %s) holds the lock: if that is another migrate, wait until it ends; else end the process with SELECT pg_terminate_backend(%[1]d)",
		pid, user, application, host, since)
}
