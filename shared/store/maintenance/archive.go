package maintenance

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
)

// ArchiveRun has the options of a run.
type ArchiveRun struct {
	Before time.Time // archive rows older than this, but none of the last 24 hours; zero = as Retention says
	DryRun bool      // no row is moved or deleted and no log dropped; but days are closed
}

// ArchiveStep is one step of a run: the effect on a page of a table, or on a partition of a log. In a dry run it is the
// effect that a run would have. Each table has at least one step, unless its rows stay forever.
type ArchiveStep struct {
	Before    time.Time // only older rows are archived
	Table     string    // "" if the step is about a partition
	Deleted   bool      // the rows are deleted, not moved to the table's archive
	Rows      int       // number of rows that were removed from the table
	Failed    []UnarchivedRow
	Partition string // name of the dropped partition of a log
	InUse     bool   // Partition was not dropped, as it or its log is in use; the next run tries again

	position archivePosition // where the next step begins
	more     bool            // the table may have another step; always true for a partition
}

// UnarchivedRow is a row that could not be archived, although it was tried alone. The row stays in its table, and each
// later run tries again.
type UnarchivedRow struct {
	Table string
	Key   string // of the row, as text
	Err   error
}

// archivePosition is the row of a table after which a run continues. Zero is the beginning.
type archivePosition struct {
	Table string    `json:"table"`
	At    time.Time `json:"at"` // when the row finished; not used for tasks
	Key   string    `json:"key"`
}

// cutoffsSQL returns archiveCutoffs. Rows of the last 24 hours stay. An event that is due only in more than a day was
// not written by Sendonce, since the relay delays an event by a minute at most. Such an event must not keep old rows
// forever.
const cutoffsSQL = `
select least(coalesce($1::timestamptz, now() - make_interval(days => $2)), now() - interval '1 day'),
    least(coalesce($1::timestamptz, now() - make_interval(days => $3)), now() - interval '1 day'),
    coalesce((select max(day) + 1 from task_totals where counted_to is null)::timestamp at time zone 'UTC', 'epoch'),
    coalesce((select created_at from event_outbox where next_at <= now() + interval '1 day' order by id limit 1), now())`

const oldPartitionsSQL = `select name from old_log_partitions($1)`

const dropPartitionSQL = `select drop_log_partition($1, $2)`

// Archive closes past days. Then it drops old log partitions, moves finished rows to the archive tables and deletes
// other old rows, table by table, in one short transaction per step. The caller may stop after any step, and any number
// of runs may be in progress. Statistics do not change. A failure does not stop the rest of the run: all errors come
// last, as one error.
func (st *Store) Archive(ctx context.Context, run ArchiveRun) iter.Seq2[ArchiveStep, error] {
	return func(yield func(ArchiveStep, error) bool) {
		stopped := false
		err := st.CloseDays(ctx)
		err = errors.Join(err, st.runArchive(ctx, run, archivePosition{}, func(s ArchiveStep) (stop bool) {
			stopped = !yield(s, nil)
			return stopped
		}))
		if err != nil && !stopped {
			yield(ArchiveStep{}, store.Wrap("archive", err))
		}
	}
}

// afterStep is called after each step. If it returns true, the run ends.
type afterStep func(ArchiveStep) (stop bool)

// runArchive drops old logs, and archives the tables from a position on.
func (st *Store) runArchive(ctx context.Context, run ArchiveRun, from archivePosition, after afterStep) error {
	cut, err := st.cutoffs(ctx, run)
	if err != nil {
		return err
	}
	stopped := false
	afterEach := func(s ArchiveStep) (stop bool) {
		stopped = after(s)
		return stopped
	}
	var errs []error
	if !cut.deleted.IsZero() {
		errs = append(errs, st.dropLogs(ctx, run.DryRun, ArchiveStep{Before: cut.deleted, position: from}, afterEach))
	}
	first := max(0, slices.IndexFunc(archivables, func(a archivable) bool { return a.table == from.Table }))
	for _, a := range archivables[first:] {
		if stopped || ctx.Err() != nil {
			break
		}
		before := a.cutoff(cut)
		if before.IsZero() {
			continue
		}
		position := archivePosition{Table: a.table, Key: a.first}
		if from.Table == a.table {
			position = from
		}
		errs = append(errs, st.archiveTable(ctx, a, run.DryRun, ArchiveStep{Before: before, Table: a.table, Deleted: a.deletes, position: position}, afterEach))
	}
	return errors.Join(errs...)
}

func (st *Store) cutoffs(ctx context.Context, run ArchiveRun) (cut archiveCutoffs, err error) {
	err = st.db.Retention.QueryRow(ctx, cutoffsSQL, store.TimeOrNull(run.Before), st.keep.TaskDays, st.keep.LogDays).Scan(&cut.moved, &cut.deleted, &cut.closed, &cut.waiting)
	if run.Before.IsZero() && st.keep.TaskDays == 0 {
		cut.moved = time.Time{}
	}
	if run.Before.IsZero() && st.keep.LogDays == 0 {
		cut.deleted = time.Time{}
	}
	return cut, err
}

// dropLogs drops the old partitions of the logs, each in a transaction of its own. s has the fields that all its steps have
// in common.
func (st *Store) dropLogs(ctx context.Context, dryRun bool, s ArchiveStep, after afterStep) error {
	names, err := store.QueryRows(ctx, st.db.Retention, pgx.RowTo[string], oldPartitionsSQL, s.Before)
	if err != nil {
		return err
	}
	for _, name := range names {
		dropped := true
		if !dryRun {
			err = st.db.Retention.QueryRow(ctx, dropPartitionSQL, name, s.Before).Scan(&dropped)
		}
		inUse := store.SQLState(err) == store.CodeLockTimeout
		if err != nil && !inUse {
			return err
		}
		s.Partition, s.InUse, s.more = name, inUse, true
		if (dropped || inUse) && after(s) {
			return nil
		}
	}
	return nil
}

// archiveTable archives the old rows of one table, page by page. s has the fields that all its steps have in common, and
// the position of the first step.
func (st *Store) archiveTable(ctx context.Context, a archivable, dryRun bool, s ArchiveStep, after afterStep) error {
	for {
		old, last, n, err := st.readPage(ctx, a, s.position, s.Before)
		if err != nil {
			return err
		}
		if n > 0 {
			s.position = last
		}
		s.Rows, s.Failed, s.more = len(old), nil, n == a.rows
		if !dryRun && len(old) > 0 {
			if s.Rows, s.Failed, err = st.archiveKeys(ctx, a, old, s.Before); err != nil {
				return err
			}
		}
		if stop := after(s); stop || !s.more {
			return nil
		}
	}
}

// readPage reads a page of rows. old has the keys of the rows that may be archived, last is the position of the last
// row of the page, and n is the number of all rows of the page.
func (st *Store) readPage(ctx context.Context, a archivable, from archivePosition, before time.Time) (old []string, last archivePosition, n int, err error) {
	rows, err := st.db.Retention.Query(ctx, a.page, from.At, from.Key, before, a.rows)
	if err != nil {
		return nil, last, 0, err
	}
	last.Table = a.table
	var isOld bool
	tag, err := pgx.ForEachRow(rows, []any{&last.Key, &last.At, &isOld}, func() error {
		if isOld {
			old = append(old, last.Key)
		}
		return nil
	})
	return old, last, int(tag.RowsAffected()), err
}

// archiveKeys archives the rows with these keys together, except locked rows. After an error that a single row may have
// caused, archiveKeys archives the rows one by one.
func (st *Store) archiveKeys(ctx context.Context, a archivable, keys []string, before time.Time) (n int, failed []UnarchivedRow, err error) {
	n, err = st.archiveTogether(ctx, a, keys, before)
	if !oneRowMayCause(ctx, err) {
		return n, nil, err
	}
	for _, key := range keys {
		archived, err := st.archiveTogether(ctx, a, []string{key}, before)
		switch {
		case err == nil:
			n += archived
		case oneRowMayCause(ctx, err):
			failed = append(failed, UnarchivedRow{a.table, key, err})
		default:
			return n, failed, err
		}
	}
	return n, failed, nil
}

// archiveTogether archives the rows with these keys in one transaction, except locked rows.
func (st *Store) archiveTogether(ctx context.Context, a archivable, keys []string, before time.Time) (n int, err error) {
	if a.lock == "" {
		err = st.db.Retention.QueryRow(ctx, a.archive, keys, before).Scan(&n)
		return n, err
	}
	err = pgx.BeginFunc(ctx, st.db.Retention, func(tx pgx.Tx) error {
		locked, err := store.QueryRows(ctx, tx, pgx.RowTo[string], a.lock, keys, before)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, a.archive, locked, before).Scan(&n)
	})
	return n, err
}

// oneRowMayCause reports whether a single row may have caused this error of a statement. One row can also make a statement
// time out.
func oneRowMayCause(ctx context.Context, err error) bool {
	return store.IsRowError(err) || store.SQLState(err) == store.CodeQueryCanceled && ctx.Err() == nil
}

// parsePosition parses a position of the table upkeep. Null, or text that is no position, means the beginning.
func parsePosition(text *string) (p archivePosition) {
	if text == nil || json.Unmarshal([]byte(*text), &p) != nil {
		return archivePosition{}
	}
	return p
}

// stored returns the position for the table upkeep: null for the beginning.
func (p archivePosition) stored() *string {
	if p == (archivePosition{}) {
		return nil
	}
	return new(store.MustJSON(p))
}
