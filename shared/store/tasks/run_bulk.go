package tasks

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

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
