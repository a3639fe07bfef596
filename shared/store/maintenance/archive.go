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

// Retention is for how many days finished rows stay; 0 = forever.
type Retention struct {
	TaskDays int // of finished tasks, messages and the like, before they move to the archive tables
	LogDays  int // of logs and of what else is deleted when it is old
}

// ArchiveRun selects what a run archives.
type ArchiveRun struct {
	Before time.Time // all that is older, whatever Retention says; zero = as Retention says
	DryRun bool      // nothing is changed
}

// ArchiveStep is what one transaction of a run did, or would have done, to a table or to
// a partition of a log. Each archived table has at least one step.
type ArchiveStep struct {
	Before    time.Time // only older rows are archived
	Table     string    // from which rows were removed; "" = the step is about a partition
	Deleted   bool      // the rows are deleted, not moved to the table's archive
	Rows      int       // that were removed
	Failed    []UnarchivedRow
	Partition string // of a log, which was dropped
	InUse     bool   // the partition was not dropped, as it or its log is in use; the next run tries again

	place archivePlace // where the next step begins
	more  bool         // the same table or the logs may have another step
}

// UnarchivedRow is a row that the database refuses to archive. It stays where it
// is; each later run tries again.
type UnarchivedRow struct {
	Table string
	Key   string // of the row, as text
	Err   error
}

// archivePlace is where an archive continues: in a table, after a row. The zero place is
// the beginning.
type archivePlace struct {
	Table string    `json:"table"`
	At    time.Time `json:"at"` // when the row was finished, if the table is read in that order
	Key   string    `json:"key"`
}

// archiveCutoffs has the times before which rows are archived. Zero = none are.
type archiveCutoffs struct {
	moved, deleted time.Time
	closed         time.Time // the end of the last day whose results are counted
	waiting        time.Time // when the oldest event that waits to be published was written, or now
}

// cutoffsSQL returns the times before which rows must have finished to be moved, and to
// be deleted. Rows of the last day stay. relay delays an event by a minute at most: one that is
// not due for a day was not written by it, and must not keep old rows forever.
const cutoffsSQL = `
select least(coalesce($1::timestamptz, now() - make_interval(days => $2)), now() - interval '1 day'),
    least(coalesce($1::timestamptz, now() - make_interval(days => $3)), now() - interval '1 day'),
    coalesce((select max(day) + 1 from task_totals where counted_to is null)::timestamp at time zone 'UTC', 'epoch'),
    coalesce((select created_at from event_outbox where next_at <= now() + interval '1 day' order by id limit 1), now())`

// archiveRows bounds one transaction: a report that waits for one of its rows
// must not wait long.
const archiveRows = 500

const oldPartitionsSQL = `select name from old_log_partitions($1)`

const dropPartitionSQL = `select drop_log_partition($1, $2)`

// Archive drops log partitions that are old enough, moves finished rows to the archive tables
// and deletes other old rows, table by table, in one short transaction per step. The caller may
// stop after any step, and any number of runs may be under way. Statistics do not change. A
// table that fails does not stop the others; its error comes last.
func (st *Store) Archive(ctx context.Context, run ArchiveRun) iter.Seq2[ArchiveStep, error] {
	return func(yield func(ArchiveStep, error) bool) {
		stopped := false
		err := st.CloseDays(ctx)
		err = errors.Join(err, st.runArchive(ctx, run, archivePlace{}, func(s ArchiveStep) bool {
			stopped = !yield(s, nil)
			return !stopped
		}))
		if err != nil && !stopped {
			yield(ArchiveStep{}, store.Wrap("archive", err))
		}
	}
}

// Archived is what a part of an archive did, by table.
type Archived struct {
	Rows   map[string]int // that left the table
	Failed []UnarchivedRow
}

func (a *Archived) add(s ArchiveStep) {
	if s.Rows > 0 {
		a.Rows[s.Table] += s.Rows
	}
	a.Failed = append(a.Failed, s.Failed...)
}

// archiveSome does a part of an Archive, beginning at a place; more means that it can
// continue at next. Otherwise the next part begins anew.
func (st *Store) archiveSome(ctx context.Context, from archivePlace) (done Archived, next archivePlace, more bool, err error) {
	end := time.Now().Add(maintenanceSlice)
	done.Rows = map[string]int{}
	err = st.runArchive(ctx, ArchiveRun{}, from, func(s ArchiveStep) bool {
		done.add(s)
		next, more = s.place, s.more && time.Now().After(end) // not after the last step of a table, which is cheap
		return !more
	})
	if !more {
		next = archivePlace{}
	}
	return done, next, more, err
}

// runArchive does steps until everything is done or step returns false.
func (st *Store) runArchive(ctx context.Context, run ArchiveRun, from archivePlace, step func(ArchiveStep) bool) error {
	var cut archiveCutoffs
	err := st.db.Retention.QueryRow(ctx, cutoffsSQL, store.TimeOrNull(run.Before), st.keep.TaskDays, st.keep.LogDays).Scan(&cut.moved, &cut.deleted, &cut.closed, &cut.waiting)
	if err != nil {
		return err
	}
	if run.Before.IsZero() && st.keep.TaskDays == 0 {
		cut.moved = time.Time{}
	}
	if run.Before.IsZero() && st.keep.LogDays == 0 {
		cut.deleted = time.Time{}
	}
	var errs []error
	goOn := true
	if !cut.deleted.IsZero() {
		goOn, err = st.dropLogs(ctx, run.DryRun, ArchiveStep{Before: cut.deleted, place: from}, step)
		errs = append(errs, err)
	}
	first := max(0, slices.IndexFunc(archivables, func(a archivable) bool { return a.table == from.Table }))
	for _, a := range archivables[first:] {
		if !goOn || ctx.Err() != nil {
			break
		}
		place := archivePlace{Table: a.table, Key: a.first}
		if from.Table == a.table {
			place = from
		}
		before := a.cutoff(cut)
		if before.IsZero() {
			continue
		}
		goOn, err = st.archiveTable(ctx, a, run.DryRun, ArchiveStep{Before: before, Table: a.table, Deleted: a.deletes, place: place}, step)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dropLogs drops the old partitions of the logs, each in a transaction of its
// own; goOn is what the last step returned.
func (st *Store) dropLogs(ctx context.Context, dry bool, s ArchiveStep, step func(ArchiveStep) bool) (goOn bool, err error) {
	names, err := store.QueryRows(ctx, st.db.Retention, pgx.RowTo[string], oldPartitionsSQL, s.Before)
	if err != nil {
		return true, err
	}
	for _, name := range names {
		dropped := true
		if !dry {
			err = st.db.Retention.QueryRow(ctx, dropPartitionSQL, name, s.Before).Scan(&dropped)
		}
		inUse := store.SQLState(err) == store.CodeLockTimeout
		if err != nil && !inUse {
			return true, err
		}
		s.Partition, s.InUse, s.more = name, inUse, true
		if (dropped || inUse) && !step(s) {
			return false, nil
		}
	}
	return true, nil
}

// archiveTable archives the old rows of one table, page by page; goOn is what the last
// step returned.
func (st *Store) archiveTable(ctx context.Context, a archivable, dry bool, s ArchiveStep, step func(ArchiveStep) bool) (goOn bool, err error) {
	for {
		old, last, read, err := st.archivePage(ctx, a, s.place, s.Before)
		if err != nil {
			return true, err
		}
		if read > 0 {
			s.place = last
		}
		s.Rows, s.Failed, s.more = len(old), nil, read == a.rows
		if !dry && len(old) > 0 {
			if s.Rows, s.Failed, err = st.archiveKeys(ctx, a, old, s.Before); err != nil {
				return true, err
			}
		}
		if !step(s) {
			return false, nil
		}
		if !s.more {
			return true, nil
		}
	}
}

// archivePage reads a page of rows that may be old, and returns the keys of those that
// are; last is the place of the last row, and read the number of rows.
func (st *Store) archivePage(ctx context.Context, a archivable, from archivePlace, before time.Time) (old []string, last archivePlace, read int, err error) {
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

// archiveKeys archives the rows with these keys, all at once, or one by one if one of
// them fails.
func (st *Store) archiveKeys(ctx context.Context, a archivable, keys []string, before time.Time) (n int, bad []UnarchivedRow, err error) {
	err = st.db.Retention.QueryRow(ctx, a.archive, keys, before).Scan(&n)
	if !mayBeOneRow(ctx, err) {
		return n, nil, err
	}
	for _, key := range keys {
		var one int
		err := st.db.Retention.QueryRow(ctx, a.archive, []string{key}, before).Scan(&one)
		switch {
		case err == nil:
			n += one
		case mayBeOneRow(ctx, err):
			bad = append(bad, UnarchivedRow{a.table, key, err})
		default:
			return n, bad, err
		}
	}
	return n, bad, nil
}

// mayBeOneRow reports whether a statement over many rows may succeed without some of them. One
// row can also make a statement time out.
func mayBeOneRow(ctx context.Context, err error) bool {
	return store.IsRowError(err) || store.SQLState(err) == store.CodeQueryCanceled && ctx.Err() == nil
}

// parsePlace reads a place from the table upkeep. Any other text is the beginning.
func parsePlace(text *string) (p archivePlace) {
	if text == nil || json.Unmarshal([]byte(*text), &p) != nil {
		return archivePlace{}
	}
	return p
}

// stored is the place for the table upkeep: null for the beginning.
func (p archivePlace) stored() *string {
	if p == (archivePlace{}) {
		return nil
	}
	text := store.MustJSON(p)
	return &text
}
