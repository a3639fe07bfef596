package store

import (
	"encoding/base64"

	"github.com/jackc/pgx/v5/pgxpool"
)

func limiterOf(pool *pgxpool.Pool) *fairLimiter {
	return pool.Config().ConnConfig.Tracer.(connectionLimiter).fairLimiter
}

// WaitingForConnections is how many calls wait for a connection of the pool.
func WaitingForConnections(pool *pgxpool.Pool) int { return limiterOf(pool).Count() }

// CallersWithConnections is how many callers have a connection of the pool.
func CallersWithConnections(pool *pgxpool.Pool) int { return len(limiterOf(pool).used) }

// EncryptEarlier encrypts as earlier versions did, bound to the id of the row alone.
func EncryptEarlier(k Keys, row, secret string) string {
	sealed := k.aead[k.ids[0]].Seal(nil, nil, []byte(secret), []byte(row))
	return earlierPrefix + k.ids[0] + "." + base64.RawStdEncoding.EncodeToString(sealed)
}
