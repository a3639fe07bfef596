package store

import (
	"context"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Retention says for how many days what is over stays; 0 = for ever.
type Retention struct {
	TaskDays int // of finished tasks in the main tables, before they move to archived_tasks
	LogDays  int // of rows of the logs, which go by whole months
}

// ArchiveRun says what a run takes.
type ArchiveRun struct {
	Before time.Time // all that is older, whatever Retention says; zero = as Retention says
	DryRun bool      // nothing is changed
}

// ArchiveStep is what one transaction of a run did, or would have done.
type ArchiveStep struct {
	Before    time.Time // what is older is looked for
	Tasks     int       // so many moved
	Partition string    // this one of a log was dropped; "" = none
	InUse     bool      // or was not, as somebody reads it or its log for long; the next run tries again

	place task.ID // where the next step goes on
}

// cutoffsSQL gives before when a task must be finished and a log row be written
// to go. Nothing of the last day goes. What statistics count row by row must stay: the
// days that are not closed.
const cutoffsSQL = `
select least(coalesce($1::timestamptz, now() - make_interval(days => $2)), now() - interval '1 day',
        coalesce((select max(day) + 1 from task_totals where counted_to is null)::timestamp at time zone 'UTC', 'epoch')),
    least(coalesce($1::timestamptz, now() - make_interval(days => $3)), now() - interval '1 day')`

// archiveSQL looks at the next page of results in order of their ids, which is
// that of the tasks' making, and moves those that are old enough, body and
// result together. A row that somebody holds is in use yet: the next run will
// see it. Rows go by id, so that what a late report made of one moves along.
const archiveSQL = `
with page as materialized (
    select id from task_done where id > $1 and id < $2 order by id limit $3
), c as materialized (
    select id from task_done where id = any(array(select id from page)) and reported_at < $4 for update skip locked
), d as (
    delete from task_done where id = any(array(select id from c)) returning *
), t as (
    delete from tasks where id = any(array(select id from c)) returning *
), a as (
    insert into archived_tasks (id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, source, send_at, expires_at,
        callback_url, metadata, created_at, status, reason, retry_count, ended, claim_id, app_id, reported_at, sent_at, result, error_code)
    select t.id, t.seq, t.caller_id, t.queue, t.priority, t.max_retries, t.on_unknown, t.phone_number, t.content, t.source, t.send_at, t.expires_at,
        t.callback_url, t.metadata, t.created_at, d.status, d.reason, d.retry_count, d.ended, d.claim_id, d.app_id, d.reported_at, d.sent_at,
        d.result, d.error_code
    from t join d on d.id = t.id
    returning id
)
select (select count(*) from a), (select count(*) from page), (select id from page order by id desc limit 1)`

// archivableSQL is archiveSQL that moves nothing.
const archivableSQL = `
with page as materialized (
    select id, reported_at from task_done where id > $1 and id < $2 order by id limit $3
)
select (select count(*) from page where reported_at < $4), (select count(*) from page), (select id from page order by id desc limit 1)`

// archiveRows bounds one transaction: a report that waits for one of its rows
// must not wait long.
const archiveRows = 500

const oldPartitionsSQL = `select name from old_log_partitions($1)`

const dropPartitionSQL = `select drop_log_partition($1, $2)`

// Archive drops the months of logs that are over and moves old finished tasks
// to archived_tasks, one short transaction per step. A run may be left after any
// step, and any number of runs may be under way. Statistics do not change by it.
func (db *DB) Archive(ctx context.Context, run ArchiveRun) iter.Seq2[ArchiveStep, error] {
	return func(yield func(ArchiveStep, error) bool) {
		err := db.CloseDays(ctx)
		if err == nil {
			err = db.runArchive(ctx, run, task.ID{}, func(s ArchiveStep) bool { return yield(s, nil) })
		}
		if err != nil {
			yield(ArchiveStep{}, failed("archive", err))
		}
	}
}

// archiveSome is a part of an Archive that begins at a place; more says that there
// are others, from the next place on. When there are none the next begins anew.
func (db *DB) archiveSome(ctx context.Context, from task.ID) (next task.ID, more bool, err error) {
	end := time.Now().Add(houseMoment)
	err = db.runArchive(ctx, ArchiveRun{}, from, func(s ArchiveStep) bool {
		next, more = s.place, time.Now().After(end)
		return !more
	})
	if err != nil || !more {
		return task.ID{}, false, err
	}
	return next, true, nil
}

// runArchive takes steps until there is nothing more to do or step returns
// false.
func (db *DB) runArchive(ctx context.Context, run ArchiveRun, from task.ID, step func(ArchiveStep) bool) error {
	var tasks, logs time.Time
	err := db.hot.QueryRow(ctx, cutoffsSQL, timeOrNull(run.Before), db.keep.TaskDays, db.keep.LogDays).Scan(&tasks, &logs)
	if err != nil {
		return err
	}
	goOn := true
	if !run.Before.IsZero() || db.keep.LogDays > 0 {
		goOn, err = db.dropLogs(ctx, run.DryRun, ArchiveStep{Before: logs, place: from}, step)
	}
	if err != nil || !goOn || run.Before.IsZero() && db.keep.TaskDays == 0 {
		return err
	}
	return db.moveTasks(ctx, run.DryRun, ArchiveStep{Before: tasks, place: from}, step)
}

// dropLogs drops the old partitions of the logs, each in a transaction of its
// own; goOn is what the last step returned.
func (db *DB) dropLogs(ctx context.Context, dry bool, s ArchiveStep, step func(ArchiveStep) bool) (goOn bool, err error) {
	rows, err := db.hot.Query(ctx, oldPartitionsSQL, s.Before)
	if err != nil {
		return false, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, err
	}
	for _, name := range names {
		dropped := true
		if !dry {
			err = db.hot.QueryRow(ctx, dropPartitionSQL, name, s.Before).Scan(&dropped)
		}
		inUse := pgCode(err) == codeLockTimeout
		if err != nil && !inUse {
			return false, err
		}
		s.Partition, s.InUse = name, inUse
		if (dropped || inUse) && !step(s) {
			return false, nil
		}
	}
	return true, nil
}

// moveTasks goes through the results whose tasks were made before the cutoff;
// younger ones cannot have been reported before it.
func (db *DB) moveTasks(ctx context.Context, dry bool, s ArchiveStep, step func(ArchiveStep) bool) error {
	sql := archiveSQL
	if dry {
		sql = archivableSQL
	}
	for {
		var looked int
		var last *task.ID
		err := db.hot.QueryRow(ctx, sql, s.place, task.IDFloor(s.Before), archiveRows, s.Before).Scan(&s.Tasks, &looked, &last)
		if err != nil || looked == 0 {
			return err
		}
		s.place = *last
		if !step(s) || looked < archiveRows {
			return nil
		}
	}
}

// archivedSQL finds archived tasks by their ids.
const archivedSQL = `
select ` + bodyColumns + `, ` + doneColumns + `, now()
from archived_tasks t cross join lateral (select t.*) d
where t.id = any($1::uuid[])`

func (db *DB) archived(ctx context.Context, ids ...task.ID) ([]Detail, error) {
	rows, err := db.hot.Query(ctx, archivedSQL, ids)
	if err != nil {
		return nil, err
	}
	found, err := scanDetails(rows)
	for i := range found {
		found[i].Archived = true
	}
	return found, err
}

// reportArchived answers the reports of tasks that are archived: what is there
// stays as it is. A report that would still have counted is stale, and kept as
// evidence like every other.
func (db *DB) reportArchived(ctx context.Context, reports []*Report, out []Reported) {
	var ids []task.ID
	for i, r := range reports {
		if !out[i].Found {
			ids = append(ids, r.TaskID)
		}
	}
	if len(ids) == 0 {
		return
	}
	err := db.withPartitions(ctx, func() error {
		archived, err := db.archived(ctx, ids...)
		if err != nil || len(archived) == 0 {
			return err
		}
		var batch pgx.Batch
		queueVerdicts(&batch, decideArchived(archived, reports, out))
		return db.hot.SendBatch(ctx, &batch).Close()
	})
	for i := range out {
		if err != nil && (!out[i].Found || out[i].archived) {
			out[i].err = err
		}
	}
}

func decideArchived(archived []Detail, reports []*Report, out []Reported) (logs []verdictLog) {
	byID := make(map[task.ID]task.Task, len(archived))
	for _, d := range archived {
		byID[d.ID] = d.Task
	}
	for i, r := range reports {
		t, ok := byID[r.TaskID]
		if !ok || !r.mayOf(t) {
			continue
		}
		_, verdict := t.Report(r.Report, nil, t.FinishedAt)
		if verdict == task.Applied {
			verdict = task.Stale
		}
		out[i] = Reported{Task: t, Verdict: verdict, Found: true, archived: true}
		logs = append(logs, r.log(t, verdict))
	}
	return logs
}

// decideAnywhere is decide for a task that may be archived: then it may be
// asked for what it is already, and for nothing else.
func (db *DB) decideAnywhere(ctx context.Context, id task.ID, how func(t task.Task, now time.Time) (task.Task, error),
	extra func(batch *pgx.Batch, before, after task.Task)) (task.Task, error) {
	t, err := db.decide(ctx, id, how, extra)
	if task.CodeOf(err) != task.CodeNotFound {
		return t, err
	}
	found, lookErr := db.archived(ctx, id)
	switch {
	case lookErr != nil:
		return t, lookErr
	case len(found) == 0:
		return t, err
	}
	before := found[0].Task
	after, err := how(before, before.FinishedAt)
	if err == nil && after != before {
		err = task.Refuse(task.CodeConflict, "the task is archived and changes no more; submit it anew")
	}
	return before, err
}
