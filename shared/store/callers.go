package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Caller is who may call and what for. ID 0 is the pair of the environment.
type Caller struct {
	ID        int64
	Name      string   // the Basic user name
	TokenHash []byte   // SHA-256 of the token, 32 bytes
	Roles     []string // submitter, sender, receiver, trigger, admin
	Queues    []string // the queues it may use; empty = all

	BusinessTypes []string // of subscribe messages, that it may order and look up; empty = all
	Receives      []string // patterns of the subjects whose messages it may confirm; empty = none
	Revoked       bool
}

const callerByNameSQL = `select id, name, token_hash, roles, queues, business_types, receives, revoked_at is not null from callers where name::text = $1::text`

// CallerByName finds a caller, revoked ones too; task.CodeNotFound when there
// is none. The caller of a list is looked up as the role of lists, over the
// connection that the list is read by.
func (db *DB) CallerByName(ctx context.Context, name string, list bool) (Caller, error) {
	from := db.hot
	if list {
		from = db.read
	}
	rows, err := from.Query(ctx, callerByNameSQL, unprepared, storable(name))
	if err != nil {
		return Caller{}, failed("caller", err)
	}
	caller, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Caller])
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, errNotFound("caller")
	}
	return caller, failed("caller", err)
}

const existingCallersSQL = `select name from callers where name::text = any($1::text[])`

// ExistingCallers picks the names that callers have, revoked ones too. A name must be
// text that Postgres can hold.
func (db *DB) ExistingCallers(ctx context.Context, names []string) ([]string, error) {
	rows, err := db.hot.Query(ctx, existingCallersSQL, unprepared, names)
	if err != nil {
		return nil, failed("callers", err)
	}
	existing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return existing, failed("callers", err)
}
