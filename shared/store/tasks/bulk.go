package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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

// decide returns the changed task. It returns an error if the state or reason of the task no longer matches the filter,
// or if the domain refuses the change.
func (b *Bulk) decide(t task.Task, now time.Time) (task.Task, error) {
	if t.State.String() != b.Filter.State {
		return t, task.Refuse(task.CodeConflict, "the task is "+t.State.String()+" by now")
	}
	if b.Filter.Reason != "" && t.Reason.String() != b.Filter.Reason {
		return t, task.Refuse(task.CodeConflict, "the reason of the task is "+t.Reason.String()+" by now")
	}
	switch b.Action {
	case BulkCancel:
		return t.Cancel(now)
	case BulkRetry:
		if b.Filter.Reason == "" && t.RetriedOnlyIfNamed() {
			return t, task.Refuse(task.CodeConflict, "the reason of the task is "+t.Reason.String()+"; such tasks are retried only if the filter has this reason")
		}
		return t.Retry(now)
	default:
		return t.Resolve(task.Resolution(b.Action), b.Reason, now)
	}
}

// verdict returns the verdict for the log of a changed task, and the action for its audit entry.
func (b *Bulk) verdict() (verdict task.Verdict, audit string) {
	switch b.Action {
	case BulkCancel:
		return task.CancelledManually, "task.cancel"
	case BulkRetry:
		return task.RetriedManually, "task.retry"
	default:
		return task.ResolvedManually, "task.resolve"
	}
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

// leaseBulkSQL leases the bulk change that has waited longest. If its operator would not be allowed to start it now,
// leaseBulkSQL stops it. A lease that ends more than a minute from now does not count: it was written while the clock
// was ahead. The bulk changes of the built-in admin, who has no row in callers, always continue.
const leaseBulkSQL = `
with next as (
    select id, caller_id, token_salt, token_proof,
        case when filter->>'queue' <> '' then array[filter->>'queue']
             when jsonb_typeof(filter->'queues') = 'array' then array(select jsonb_array_elements_text(filter->'queues'))
             else '{}' end as queues
    from bulk_changes where finished_at is null and (leased_to is null or leased_to not between now() and now() + interval '1 minute')
    order by coalesce(leased_to, created_at), id limit 1 for update skip locked
), judged as (
    select next.id as bulk_id, case
        when c.id is null then null
        when c.revoked_at is not null then 'its operator was revoked'
        when token_proof(c.id, next.token_salt) is distinct from next.token_proof then 'the token of its operator was replaced'
        when not 'admin' = any(c.roles) then 'its operator is not an admin any more'
        when c.queues <> '{}' and (next.queues = '{}' or not next.queues <@ c.queues) then 'its operator may not use all of its queues any more'
    end as stop
    from next left join callers c on c.id = next.caller_id
)
update bulk_changes set leased_to = now() + $1::interval, finished_at = case when stop is not null then now() end, stop_reason = stop
from judged
where id = bulk_id
returning ` + bulkColumns

// progressSQL stores the progress of a batch. It is also the fence of the batch: it changes no row if the bulk change
// was stopped, or if another process has committed this batch. It ends the lease, so that RunBulk continues with the
// bulk change that has waited longest. An attacker who controls a function can write large counters; least prevents an
// overflow.
const progressSQL = `
update bulk_changes set place = $3, looked = least(looked, 2000000000) + $4, changed = least(changed, 2000000000) + $5,
    refused = least(refused, 2000000000) + $6, last_error = coalesce($7, last_error),
    leased_to = now() - interval '1 second', finished_at = case when $8 then now() end,
    stop_reason = case when $9 then 'more tasks match by now than were counted: begin another bulk change' end
where id = $1 and place is not distinct from $2 and finished_at is null`

const endUnreadableBulkSQL = `update bulk_changes set finished_at = now(), stop_reason = 'its filter cannot be read' where id = $1 and finished_at is null`

// BulkResult is the result of RunBulk.
type BulkResult struct {
	Changed int
	Pending PendingByQueue // tasks that became pending
	More    bool           // call RunBulk again, even after an error: other bulk changes may run
	Next    time.Time      // if More is false: the earliest end of a lease of a bulk change; zero = none is leased
}

// nextBulkSQL returns the earliest end of a lease of an unfinished bulk change.
const nextBulkSQL = `select min(leased_to) from bulk_changes where finished_at is null and leased_to <= now() + interval '1 minute'`

// RunBulk executes the next batch of the bulk change that has waited longest. Any number of calls may run at once. One
// transaction commits the batch and the new Place, so a batch is applied once even if processes die. If single tasks
// may have made the batch fail (store.IsRowError), the tasks are changed one by one. A task whose change the database
// will never accept (store.IsPoison) counts as refused. After any other failure, the bulk change waits for the end of
// its lease, and the next calls run other bulk changes.
func (st *Store) RunBulk(ctx context.Context, limit int) (result BulkResult, err error) {
	b, err := store.QueryOne[Bulk](ctx, st.db.Hot, "bulk change", leaseBulkSQL, bulkLease)
	switch {
	case task.CodeOf(err) == task.CodeNotFound: // a bulk change whose process died continues only after the end of its lease
		result.Next, err = st.db.QueryTime(ctx, nextBulkSQL)
		return result, store.Wrap("bulk change", err)
	case err != nil:
		return BulkResult{}, store.Wrap("bulk change", err)
	case b.FinishedAt != nil:
		return BulkResult{More: true}, nil
	case b.Filter.unreadable:
		_, err = st.db.Hot.Exec(ctx, endUnreadableBulkSQL, b.ID)
		return BulkResult{More: true}, store.Wrap("bulk change", err)
	}
	page, err := st.List(ctx, b.remaining(limit))
	if err != nil {
		return BulkResult{More: true}, store.Wrap("bulk change", err)
	}
	batch, result := b.nextBatch(page), BulkResult{Pending: PendingByQueue{}, More: true}
	err = st.runBatch(ctx, &batch, &result)
	if store.IsPoison(err) || store.IsRowError(err) && len(batch.ids) > 1 {
		err = st.runOneByOne(ctx, batch, &result)
	}
	return result, store.Wrap("bulk change", err)
}

// bulkBatch has the next tasks of a bulk change.
type bulkBatch struct {
	bulk  Bulk
	ids   []task.ID
	place task.ID // Place after the batch
	last  bool    // the bulk change is finished after the batch
	full  bool    // tasks of the page are left out, since no more than Matched tasks may be changed
	bad   bool    // the batch has one task, and the database refuses its change
}

// nextBatch returns the batch for a page of tasks. The batch is the last one if no page follows, or if the page has
// more tasks than may still be changed.
func (b *Bulk) nextBatch(page Page) bulkBatch {
	n := max(min(len(page.Tasks), b.Matched-b.Changed), 0) // Changed exceeds Matched only if an attacker wrote the row of bulk_changes
	full := n < len(page.Tasks)
	batch := bulkBatch{bulk: *b, ids: make([]task.ID, 0, n), place: page.Next, last: page.Next.IsZero() || full, full: full}
	for _, t := range page.Tasks[:n] {
		batch.ids = append(batch.ids, t.ID)
	}
	if batch.last && len(page.Tasks) > 0 {
		batch.place = page.Tasks[len(page.Tasks)-1].ID
	}
	return batch
}

// runOneByOne runs each task of a batch as a batch of its own.
func (st *Store) runOneByOne(ctx context.Context, all bulkBatch, total *BulkResult) error {
	for i, id := range all.ids {
		single := bulkBatch{bulk: all.bulk, ids: []task.ID{id}, place: id}
		if i == len(all.ids)-1 {
			single.place, single.last, single.full = all.place, all.last, all.full
		}
		err := st.runBatch(ctx, &single, total)
		if store.IsPoison(err) {
			single.bad = true
			err = st.runBatch(ctx, &single, total)
		}
		if err != nil {
			return err
		}
		all.bulk.Place = new(single.place)
	}
	return nil
}

// runBatch locks the tasks of the batch, lets the domain decide about each task, and commits the changes with the new place.
func (st *Store) runBatch(ctx context.Context, batch *bulkBatch, total *BulkResult) error {
	var result BulkResult
	err := st.db.WithPartitions(ctx, func() error {
		conn, err := st.db.Hot.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		locked, err := Lock(ctx, conn.Conn(), batch.ids, LockTimeout)
		if err == nil {
			result, err = st.commitBatch(ctx, conn.Conn(), locked, batch)
		}
		return store.RollbackOn(conn.Conn(), err)
	})
	if err != nil {
		return err
	}
	total.Changed += result.Changed
	for queue, n := range result.Pending {
		total.Pending[queue] += n
	}
	return nil
}

func (st *Store) commitBatch(ctx context.Context, conn *pgx.Conn, locked Locked, batch *bulkBatch) (result BulkResult, err error) {
	result.Pending = PendingByQueue{}
	changes, refused, lastError, err := st.decideBatch(ctx, conn, locked, batch)
	if err != nil {
		return result, err
	}
	b := batch.bulk
	progress, err := conn.Exec(ctx, progressSQL, b.ID, b.Place, store.OrNull(batch.place), len(batch.ids), len(changes), refused, lastError, batch.last, batch.full)
	if err != nil {
		return result, err
	}
	if progress.RowsAffected() == 0 {
		return BulkResult{}, conn.PgConn().Exec(ctx, "rollback").Close() // stopped, or another process was faster
	}
	verdict, audit := b.verdict()
	by := store.Operator{CallerID: b.CallerID, Name: b.CallerName, RequestID: b.RequestID, Reason: b.Reason}
	var logs []VerdictLog
	var sql pgx.Batch
	for _, c := range changes {
		log := VerdictLog{ID: c.After.ID, claimID: c.Before.ClaimID, Verdict: verdict, Message: cmp.Or(b.Reason, c.After.Result)}
		if b.Action == BulkCancel {
			log.claimID = 0
		}
		logs = append(logs, log)
		by.QueueAudit(&sql, audit, c.After.ID.String(), taskJSON(c.Before), taskJSON(c.After))
		if c.After.State == task.Pending {
			result.Pending[c.After.Queue]++
		}
	}
	var notifier *store.Notifier
	if len(changes) > 0 {
		QueueVerdicts(&sql, logs)
		notifier = st.QueueChanges(&sql, changes)
	}
	sql.Queue("commit")
	result.Changed = len(changes)
	return result, notifier.Notify(conn.SendBatch(ctx, &sql).Close())
}

// decideBatch returns the changes, the number of refused tasks, and why the last of these was refused.
func (st *Store) decideBatch(ctx context.Context, conn *pgx.Conn, locked Locked, batch *bulkBatch) (changes []Change, refused int, lastError *string, err error) {
	for _, id := range batch.ids {
		before, found, err := locked.Of(id)
		var after task.Task
		switch {
		case err != nil:
			return nil, 0, nil, err
		case batch.bad:
			err = task.Refuse(task.CodeConflict, "the database refuses the change of task "+id.String())
		case !found:
			err = task.Refuse(task.CodeNotFound, "the task was archived meanwhile")
		default:
			after, err = batch.bulk.decide(before, locked.Now)
		}
		if err == nil && before.State.Final() && !after.State.Final() {
			err = st.hooks.MayRevive(ctx, conn, before)
		}
		var refusal *task.Error
		switch {
		case errors.As(err, &refusal):
			refused++
			lastError = new(task.Cut(store.Storable(refusal.Message), 500))
		case err != nil:
			return nil, 0, nil, err
		case after != before:
			changes = append(changes, Change{before, after})
		}
	}
	return changes, refused, lastError, nil
}
