package store

import (
	"context"
	"time"
)

// ReadCostly runs a read that may use a core of Postgres for seconds. One caller has at most one such read at a time in
// this process, and all callers together have at most costlyReads. The others wait in turn, as for a connection of a
// pool, but hold none. After a wait of maxWait, the error is context.DeadlineExceeded.
func (db *DB) ReadCostly(ctx context.Context, maxWait time.Duration, read func() error) error {
	caller, ok := ctx.Value(callerKey{}).(int64)
	if !ok {
		return read()
	}
	limited, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	if err := db.costlyReads.acquire(limited, caller); err != nil {
		return err
	}
	defer db.costlyReads.release(caller)
	return read()
}
