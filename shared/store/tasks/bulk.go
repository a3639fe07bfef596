package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// BulkAction is what a bulk change does with each task.
type BulkAction string

// The actions. The last three resolve held tasks.
const (
	BulkCancel    BulkAction = "cancel"
	BulkRetry     BulkAction = "retry"
	BulkSucceeded            = BulkAction(task.ResolveSucceeded)
	BulkFailed               = BulkAction(task.ResolveFailed)
	BulkResend               = BulkAction(task.ResolveResend)
)

const (
	// MaxBulk is the most tasks that one bulk change may match.
	MaxBulk = 1_000_000

	bulkLease                 = 30 * time.Second
	maxRunningBulks           = 20      // of all accounts
	reservedBulks             = 5       // of maxRunningBulks: only for operators who are not limited to queues
	maxRunningBulksPerAccount = 5       // see callers.Caller.Account
	bulkStartLock             = 7310020 // advisory lock
)

// BulkFilter selects the tasks to change, as Filter does. To must be set, so that tasks submitted later are not
// changed.
type BulkFilter struct {
	State    string     `json:"state"`
	Reason   string     `json:"reason,omitempty"`
	Phone    string     `json:"phone_number,omitempty"`
	Source   string     `json:"source,omitempty"`
	Queue    string     `json:"queue,omitempty"`
	Queues   []string   `json:"queues,omitempty"` // the operator's queues; empty = all
	CallerID *int64     `json:"caller_id,omitempty"`
	From     *time.Time `json:"from,omitempty"`
	To       time.Time  `json:"to"`

	unreadable bool // the stored filter is invalid; only an attacker who controls a function can write such a row
}

// ScanBytes implements pgtype.BytesScanner. An invalid filter is no error, so that it does not make a whole page fail.
func (f *BulkFilter) ScanBytes(text []byte) error {
	if json.Unmarshal(text, f) != nil || !f.valid() {
		*f = BulkFilter{unreadable: true}
	}
	return nil
}

// valid reports whether an API response can contain the filter: the caller id is not negative, and the times can be
// written as JSON (store.ValidTime).
func (f BulkFilter) valid() bool {
	return (f.CallerID == nil || *f.CallerID >= 0) && (f.From == nil || store.ValidTime(*f.From)) && store.ValidTime(f.To)
}

// Bulk is a bulk change.
type Bulk struct {
	ID         task.ID
	CallerID   int64
	CallerName string
	RequestID  string
	Action     BulkAction
	Filter     BulkFilter
	Reason     string
	Matched    int      // tasks that matched when the bulk change began; at most this many are changed
	Place      *task.ID // only tasks with an id below Place remain; nil = all remain
	Looked     int      // tasks that were examined
	Changed    int
	Refused    int     // tasks whose change was refused
	LastError  *string // why the last refused task was refused
	StoppedBy  *string // the operator who stopped the bulk change; nil = no operator did
	StopReason *string // why the service stopped the bulk change; nil = the service did not
	CreatedAt  time.Time
	FinishedAt *time.Time // nil = running
}

const bulkColumns = `id, caller_id, caller_name, request_id, action, filter, reason, matched, place, looked, changed, refused, last_error, stopped_by, stop_reason, created_at, finished_at`

// remaining returns the filter of the next tasks, at most limit: those that match Filter and have an id below Place.
func (b *Bulk) remaining(limit int) Filter {
	state, _ := task.ParseState(b.Filter.State)
	f := Filter{State: &state, Phone: b.Filter.Phone, Source: b.Filter.Source, Queue: b.Filter.Queue, Queues: b.Filter.Queues, CallerID: b.Filter.CallerID, From: store.OrZero(b.Filter.From), To: b.Filter.To,
		After: store.OrZero(b.Place), Limit: limit}
	f.Reason, _ = task.ParseReason(b.Filter.Reason)
	return f
}

// CountWait is how long CountMatches waits for other counts and searches.
const CountWait = 10 * time.Second

// CountMatches counts the tasks that match a filter. The error is task.CodeInvalid if more than MaxBulk match or counting
// exceeds the statement timeout, and task.CodeServerBusy after a wait of CountWait, or if Postgres does not respond.
func (st *Store) CountMatches(ctx context.Context, filter BulkFilter) (n int, err error) {
	f := (&Bulk{Filter: filter}).remaining(MaxBulk)
	count := func(tx pgx.Tx) error {
		for _, f.Phone = range st.phones.Spellings(filter.Phone) {
			low, high := f.bounds()
			sql, _, _ := f.indexStatements(low, high)
			var matched int
			if err := tx.QueryRow(ctx, `select count(*) from (`+sql+`) matching`, f.args(low, high)...).Scan(&matched); err != nil {
				return err
			}
			n += matched
		}
		return nil
	}
	err = st.db.ReadCostly(ctx, CountWait, func() error {
		return pgx.BeginTxFunc(ctx, st.db.Read, pgx.TxOptions{AccessMode: pgx.ReadOnly}, count)
	})
	if ctx.Err() == nil && store.SQLState(err) == store.CodeQueryCanceled || err == nil && n > MaxBulk {
		return 0, task.Invalid([]task.Field{{Name: "filter.from", Message: fmt.Sprintf("narrow the filter: more than %d tasks match, or counting them takes too long", MaxBulk)}})
	}
	return n, store.Wrap("count tasks", err)
}

// TokenProof identifies the token with which a caller began a bulk change; see callers.Caller. It is zero for the
// built-in admin.
type TokenProof struct{ Salt, Proof []byte }

// lockStartSQL lets only one bulk change start at a time: two concurrent starts would not count each other.
const lockStartSQL = `select pg_advisory_xact_lock($1)`

const runningBulksSQL = `
select count(*), count(*) filter (where coalesce(c.account_id, b.caller_id) = coalesce((select account_id from callers where id = $1), $1))
from bulk_changes b left join callers c on c.id = b.caller_id
where b.finished_at is null`

const startBulkSQL = `
insert into bulk_changes (id, caller_id, caller_name, request_id, action, filter, reason, matched, token_salt, token_proof, finished_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, case when $8 = 0 then now() end)
returning ` + bulkColumns

// StartBulk stores a bulk change. RunBulk executes it only while the operator would be allowed to start it with this
// token. If matched is 0, the bulk change is stored as finished.
func (st *Store) StartBulk(ctx context.Context, id task.ID, action BulkAction, filter BulkFilter, matched int, token TokenProof, by store.Operator) (b Bulk, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		if err := mayStartBulk(ctx, tx, len(filter.Queues) > 0, by); err != nil {
			return store.AuditEntry{}, err
		}
		filterText := store.MustJSON(filter)
		b, err = store.QueryOne[Bulk](ctx, tx, "bulk change", startBulkSQL, id, by.CallerID, by.StoredName(), by.RequestID, action, filterText, store.Storable(by.Reason), matched, token.Salt, token.Proof)
		return store.AuditEntry{Action: "bulk." + string(action), Subject: "bulk/" + id.String(), After: filterText}, err
	})
	return b, store.Wrap("start bulk change", err)
}

// mayStartBulk refuses a new bulk change if too many are running. limited means that its operator may use only some
// queues.
func mayStartBulk(ctx context.Context, tx pgx.Tx, limited bool, by store.Operator) error {
	if _, err := tx.Exec(ctx, lockStartSQL, bulkStartLock); err != nil {
		return err
	}
	most := maxRunningBulks
	if limited {
		most -= reservedBulks
	}
	var all, ofAccount int
	if err := tx.QueryRow(ctx, runningBulksSQL, by.CallerID).Scan(&all, &ofAccount); err != nil {
		return err
	}
	switch {
	case ofAccount >= maxRunningBulksPerAccount:
		return task.Refuse(task.CodeConflict, fmt.Sprintf("%d bulk changes of this caller are running; wait for one, or stop one", maxRunningBulksPerAccount))
	case all >= most:
		return task.Refuse(task.CodeConflict, fmt.Sprintf("%d bulk changes are running; wait for one, or stop one", all))
	}
	return nil
}

const stopBulkSQL = `update bulk_changes set finished_at = now(), stopped_by = $2 where id = $1 and finished_at is null returning ` + bulkColumns

// StopBulk stops a bulk change: no further batch is committed. Tasks that were changed stay changed. If the bulk
// change has already ended, StopBulk returns it unchanged.
func (st *Store) StopBulk(ctx context.Context, id task.ID, by store.Operator) (b Bulk, err error) {
	err = st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		b, err = store.QueryOne[Bulk](ctx, tx, "bulk change", stopBulkSQL, id, by.StoredName())
		if task.CodeOf(err) == task.CodeNotFound {
			b, err = store.QueryOne[Bulk](ctx, tx, "bulk change", bulkByIDSQL, id)
			return store.AuditEntry{}, err
		}
		return store.AuditEntry{Action: "bulk.stop", Subject: "bulk/" + id.String(), After: fmt.Sprintf(`{"changed":%d}`, b.Changed)}, err
	})
	return b, store.Wrap("stop bulk change", err)
}

const bulkByIDSQL = `select ` + bulkColumns + ` from bulk_changes where id = $1`

// BulkByID finds a bulk change. If there is none, the error is task.CodeNotFound.
func (st *Store) BulkByID(ctx context.Context, id task.ID) (Bulk, error) {
	b, err := store.QueryOne[Bulk](ctx, st.db.Hot, "bulk change", bulkByIDSQL, id)
	return b, store.Wrap("bulk change", err)
}

const bulksSQL = `
select ` + bulkColumns + ` from bulk_changes
where ($1::uuid is null or id < $1) and ($2::bigint is null or caller_id = $2)
order by id desc limit $3`

// Bulks lists bulk changes, newest first: those of the caller callerID, or all if callerID is nil.
func (st *Store) Bulks(ctx context.Context, callerID *int64, after task.ID, limit int) (page []Bulk, more bool, err error) {
	page, more, err = store.QueryPage[Bulk](ctx, st.db.Read, limit, bulksSQL, store.OrNull(after), callerID)
	return page, more, store.Wrap("bulk changes", err)
}
