package store

import "github.com/jackc/pgx/v5/pgxpool"

func limiterOf(pool *pgxpool.Pool) *fairLimiter {
	return pool.Config().ConnConfig.Tracer.(connectionLimiter).fairLimiter
}

// WaitingForConnections is how many calls wait for a connection of the pool.
func WaitingForConnections(pool *pgxpool.Pool) int { return limiterOf(pool).Count() }

// CallersWithConnections is how many callers have a connection of the pool.
func CallersWithConnections(pool *pgxpool.Pool) int { return len(limiterOf(pool).byCaller) }
