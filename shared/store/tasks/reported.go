package tasks

import (
	"slices"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Report is a sender's report.
type Report struct {
	task.Report
	Queues  []string // the caller's queues; empty = all
	Request []byte   // the report as received, for report_logs
}

// isVisible reports whether a caller with these queues (empty = all) may see the task. The caller of the newest claim
// may see it even after an admin has taken the queue from this caller: otherwise its report would be refused, and a
// message that it has sent would be sent again.
func isVisible(t task.Task, caller int64, queues []string) bool {
	return len(queues) == 0 || slices.Contains(queues, t.Queue) || t.ClaimedBy != nil && *t.ClaimedBy == caller
}

func (r *Report) log(t task.Task, verdict task.Verdict) VerdictLog {
	l := VerdictLog{
		ID: r.TaskID, claimID: r.ClaimID, appID: r.AppID, Verdict: verdict,
		errorCode: r.ErrorCode, Message: r.Message, request: store.LogJSON(r.Request),
	}
	if l.claimID == 0 && verdict != task.Stale {
		l.claimID = t.ClaimID
	}
	if verdict == task.Stale && (t.ClaimedBy == nil || t.IsForeign(r.CallerID)) {
		l.foreignCaller = &r.CallerID
	}
	switch r.Outcome {
	case task.SentOK:
		l.status = task.Succeeded.Status()
	case task.SentFailed:
		l.status = task.Failed.Status()
	}
	return l
}

// Reported is the result of a Report.
type Reported struct {
	Task    task.Task // after the report
	Verdict task.Verdict
	Found   bool // false: there is no such task, or the caller may not see it (isVisible)

	archived bool
	err      error // of this report alone
}
