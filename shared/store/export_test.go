package store

import "github.com/jackc/pgx/v5/pgxpool"

func limiterOf(pool *pgxpool.Pool) *fairLimiter {
	return pool.Config().ConnConfig.Tracer.(connectionLimiter).fairLimiter
}

func (l *fairLimiter) waitingCalls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.total
}

// WaitingForConnections returns how many calls wait for a connection of the pool.
func WaitingForConnections(pool *pgxpool.Pool) int { return limiterOf(pool).waitingCalls() }

// WaitingForCostlyReads returns how many calls of ReadCostly wait for their turn.
func WaitingForCostlyReads(db *DB) int { return db.costlyReads.waitingCalls() }

// CallersWithConnections returns how many callers have a connection of the pool.
func CallersWithConnections(pool *pgxpool.Pool) int { return len(limiterOf(pool).byCaller) }

// CountCancelledSync counts a commit as the notice does that its wait for the standby was cancelled.
func CountCancelledSync(db *DB) { db.cancelledSyncs.Add(1) }
