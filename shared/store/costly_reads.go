package store

import (
	"context"
	"time"
)

// ReadCostly runs a read that may use a core of Postgres for seconds. In this process, at most maxCostlyReads such reads
// run at once, of each caller at most one. Other calls wait in turn and hold no connection; after maxWait, the error is
// context.DeadlineExceeded. A read without a caller (WithCaller) is not limited.
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
