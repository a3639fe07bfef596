package callers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
)

// Caller has what the requests of a caller are checked against. ID 0 is the built-in admin.
type Caller struct {
	ID     int64
	Name   string   // the Basic user name
	Salt   []byte   // of Proof; the same for all callers of one Store
	Proof  []byte   // TokenProof(Salt, the hash of the token)
	Roles  []string // submitter, sender, receiver, viewer, trigger, admin
	Queues []string // that it may use; empty = all

	BusinessTypes []string // of WeChat subscribe messages that it may submit and look up; empty = all
	Receives      []string // patterns of the subjects whose messages it may confirm; empty = none
	Revoked       bool

	MaxWaitingMessages *int64 // messages that may wait to be delivered or confirmed; nil = stores.Config.Waiting.Items
	MaxWaitingBytes    *int64 // bytes of their data; nil = stores.Config.Waiting.Bytes
	MaxWaitingTasks    *int64 // tasks that may be unfinished; nil = stores.Config.WaitingTasks
	BestPriority       int64  // the smallest number that it may give as the priority of a task; 0 is claimed first

	// The account is the limited operator at the beginning of the chain of StoredCaller.MadeBy, or
	// the caller itself if MadeBy is nil. Quotas and shares count all callers of an account together.
	// The built-in admin has 0 and "".
	AccountID   int64
	AccountName string
}

// Account returns the ID of the caller's account.
func (c Caller) Account() int64 { return cmp.Or(c.AccountID, c.ID) }

// QuotaName returns the name of the caller's account, under which its quotas and shares are counted.
func (c Caller) QuotaName() string { return cmp.Or(c.AccountName, c.Name) }

// Grants returns the grants of the caller.
func (c Caller) Grants() Grants {
	return Grants{
		Roles: c.Roles, Queues: c.Queues, BusinessTypes: c.BusinessTypes, Receives: c.Receives,
		MaxWaitingMessages: c.MaxWaitingMessages, MaxWaitingBytes: c.MaxWaitingBytes, MaxWaitingTasks: c.MaxWaitingTasks,
		BestPriority: &c.BestPriority,
	}
}

// TokenProof returns the SHA-256 of salt and hash; hash is the SHA-256 of a token. The database
// returns this proof, by which a process verifies a token, and never the hash itself.
func TokenProof(salt []byte, hash [sha256.Size]byte) []byte {
	proof := sha256.Sum256(slices.Concat(salt, hash[:]))
	return proof[:]
}

// MatchesToken reports whether hash is the SHA-256 of the caller's token. It takes the same time for any
// hash.
func (c Caller) MatchesToken(hash [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(TokenProof(c.Salt, hash), c.Proof) == 1
}

const callerByNameSQL = `
select c.id, c.name, $2::bytea, token_proof(c.id, $2::bytea), c.roles, c.queues, c.business_types, c.receives, c.revoked_at is not null,
    c.max_waiting_messages, c.max_waiting_bytes, c.max_waiting_tasks, c.best_priority,
    a.id, a.name
from callers c join callers a on a.id = coalesce(c.account_id, c.id)
where c.name::text = $1::text`

// ByName returns a caller, revoked or not; task.CodeNotFound if there is none. If forList is true, ByName
// uses the read role: a request for a list needs a connection of this role anyway.
func (st *Store) ByName(ctx context.Context, name string, forList bool) (Caller, error) {
	pool := st.db.Hot
	if forList {
		pool = st.db.Read
	}
	caller, err := store.QueryOne[Caller](ctx, pool, "caller", callerByNameSQL, store.Unprepared, store.Storable(name), st.salt)
	return caller, store.Wrap("caller", err)
}

const existingCallersSQL = `select name from callers where name::text = any($1::text[])`

// Existing returns which of the names are names of callers, revoked or not. The names must be texts that Postgres accepts.
func (st *Store) Existing(ctx context.Context, names []string) ([]string, error) {
	existing, err := store.QueryRows(ctx, st.db.Hot, pgx.RowTo[string], existingCallersSQL, store.Unprepared, names)
	return existing, store.Wrap("callers", err)
}
