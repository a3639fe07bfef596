package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Report applies the reports, together with those of other calls, and returns when all have been
// processed. The two slices have one entry for each report, in order.
func (st *Store) Report(reports []*Report) ([]Reported, []error) {
	outs, errs := st.reports.Do(reports)
	for i, err := range errs {
		if err == nil {
			err = outs[i].err
		}
		errs[i] = store.Wrap("report", err)
	}
	return outs, errs
}

// flushReports locks the tasks, lets the domain decide in order of arrival, and commits all decisions in one
// transaction. After that, it handles the reports on archived tasks.
func (st *Store) flushReports(ctx context.Context, reports []*Report, alone bool) ([]Reported, error) {
	var last reportTry
	err := st.db.RetryLostCommit(ctx, func(bool) (err error) {
		last, err = st.reportOnce(ctx, reports, alone, last)
		return err
	})
	if err == nil {
		st.reportArchived(ctx, reports, last.out)
	}
	return last.out, err
}

// reportTry has the results of one transaction of reports. They are valid if the transaction was
// committed, which its row of report_logs proves. The state of the task does not prove it: the same app
// may have claimed the task again. The transaction id does not prove it either: after a failover another
// transaction may have the same id.
type reportTry struct {
	out    []Reported
	logged *task.ID  // task_id of a log row that the transaction always writes; nil = there is none
	at     time.Time // created_at of that row
}

// reportOnce runs one transaction of reports. It returns the results even after an error, since the transaction
// may have been committed. Once reportOnce has locked the tasks, the transaction of a previous try that changed one of
// them has ended. So reportOnce then queries whether the previous try was committed. If so, it returns previous.
func (st *Store) reportOnce(ctx context.Context, reports []*Report, alone bool, previous reportTry) (reportTry, error) {
	conn, err := st.db.Hot.Acquire(ctx)
	if err != nil {
		return previous, err
	}
	defer conn.Release()
	timeout := LockTimeout
	if alone { // the flush that failed before has already waited
		timeout = lockTimeoutAlone
	}
	locked, err := lockReported(ctx, conn.Conn(), reports, timeout)
	committed := false
	if err == nil && previous.logged != nil {
		err = conn.QueryRow(ctx, reportedSQL, previous.logged, previous.at).Scan(&committed)
	}
	if err != nil {
		return previous, store.WrapConnectionLost(conn.Conn(), store.RollbackOn(conn.Conn(), err))
	}
	if committed {
		store.Rollback(conn.Conn())
		return previous, nil
	}
	out, changes, logs := decideReports(locked, reports, st.backoff)
	try := reportTry{out: out, at: locked.Now}
	if i := slices.IndexFunc(logs, func(l VerdictLog) bool { return l.foreignCaller == nil }); i >= 0 {
		try.logged = &logs[i].ID
	}
	var batch pgx.Batch
	notifier := st.QueueChanges(&batch, changes)
	QueueVerdicts(&batch, logs)
	batch.Queue("commit")
	err = store.RollbackOn(conn.Conn(), notifier.Notify(conn.Conn().SendBatch(ctx, &batch).Close()))
	return try, store.WrapConnectionLost(conn.Conn(), err)
}

const reportedSQL = `select exists(select from report_logs where task_id = $1 and created_at = $2)`

// decideReports decides about the reports in order. It returns one change for each changed task, even if several
// reports changed it.
func decideReports(locked Locked, reports []*Report, backoff task.Backoff) ([]Reported, []Change, []VerdictLog) {
	out := make([]Reported, len(reports))
	current := make(map[task.ID]task.Task, len(locked.tasks))
	logs := make([]VerdictLog, 0, len(reports))
	for i, r := range reports {
		t, isLocked, found, err := locked.reported(r.TaskID)
		if err != nil {
			out[i] = Reported{err: err}
			continue
		}
		if !found || !isVisible(t, r.CallerID, r.Queues) {
			continue
		}
		if after, changed := current[r.TaskID]; changed {
			t = after
		}
		after, verdict := t.Report(r.Report, backoff, locked.Now)
		switch {
		case verdict == task.Applied && !isLocked: // the task changed after lockReported decided which tasks to lock
			out[i] = Reported{err: store.Busy()}
			continue
		case verdict == task.Applied:
			current[r.TaskID] = after
		}
		out[i] = Reported{Task: after, Verdict: verdict, Found: true}
		logs = append(logs, r.log(t, verdict))
	}
	changes := make([]Change, 0, len(current))
	for _, r := range reports {
		if after, changed := current[r.TaskID]; changed {
			changes = append(changes, Change{locked.tasks[r.TaskID], after})
			delete(current, r.TaskID)
		}
	}
	return out, changes, logs
}
