package store

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Report is a sender's report and who may make it.
type Report struct {
	task.Report
	Queues  []string // the caller's queues; empty = all
	Request []byte   // the report as it came, for report_logs
}

// Reported is the answer to a Report.
type Reported struct {
	Task    task.Task // after the report
	Verdict task.Verdict
	Found   bool // false: no such task, or not one of the caller's queues
}

// Report decides the reports, together with those of other calls, and returns
// when all are committed. The two slices answer each in order.
func (db *DB) Report(reports []*Report) ([]Reported, []error) {
	outs, errs := db.reports.do(reports)
	for i, err := range errs {
		errs[i] = failed("report", err)
	}
	return outs, errs
}

// flushReports locks the tasks, lets the domain decide in order of arrival,
// and applies all decisions at once. A report whose commit was lost and is run
// again meets its own effect: the domain calls it Already.
func (db *DB) flushReports(ctx context.Context, reports []*Report) (out []Reported, err error) {
	err = db.retrying(ctx, func(again bool) error {
		out, err = db.reportOnce(ctx, reports, again)
		return err
	})
	return out, err
}

func (db *DB) reportOnce(ctx context.Context, reports []*Report, again bool) ([]Reported, error) {
	conn, err := db.hot.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	held, err := lockTasks(ctx, conn.Conn(), column(reports, func(r *Report) task.ID { return r.TaskID }))
	if err != nil {
		return nil, unlessLost(conn.Conn(), rolledBack(conn.Conn(), err))
	}
	out, changes, logs := decideReports(held, reports)
	if again {
		markOwn(out)
	}
	var batch pgx.Batch
	queueChanges(&batch, changes)
	queueVerdicts(&batch, logs)
	batch.Queue("commit")
	err = rolledBack(conn.Conn(), conn.Conn().SendBatch(ctx, &batch).Close())
	return out, unlessLost(conn.Conn(), err)
}

// decideReports runs the reports against the locked tasks, each against what
// the ones before it left.
func decideReports(held locked, reports []*Report) ([]Reported, []change, []verdictLog) {
	out := make([]Reported, len(reports))
	now := make(map[task.ID]task.Task, len(held.tasks))
	logs := make([]verdictLog, 0, len(reports))
	for i, r := range reports {
		t, ok := held.tasks[r.TaskID]
		if !ok || len(r.Queues) > 0 && !slices.Contains(r.Queues, t.Queue) {
			continue
		}
		if newer, touched := now[r.TaskID]; touched {
			t = newer
		}
		after, verdict := t.Report(r.Report, held.now)
		if verdict == task.Applied {
			now[r.TaskID] = after
		}
		out[i] = Reported{Task: after, Verdict: verdict, Found: true}
		logs = append(logs, r.log(t, verdict))
	}
	changes := make([]change, 0, len(now))
	for id, after := range now {
		changes = append(changes, change{held.tasks[id], after})
	}
	return out, changes, logs
}

// markOwn undoes the "already" of reports that met their own first run.
func markOwn(out []Reported) {
	for i := range out {
		if out[i].Verdict == task.Already {
			out[i].Verdict = task.Applied
		}
	}
}

func (r *Report) log(t task.Task, verdict task.Verdict) verdictLog {
	l := verdictLog{
		id: r.TaskID, claimID: r.ClaimID, appID: r.AppID, verdict: verdict,
		errorCode: r.ErrorCode, message: r.Message, request: logJSON(r.Request),
	}
	if l.claimID == 0 && verdict != task.Stale {
		l.claimID = t.ClaimID
	}
	switch r.Outcome {
	case task.SentOK:
		l.status = task.Succeeded.Status()
	case task.SentFailed:
		l.status = task.Failed.Status()
	}
	return l
}
