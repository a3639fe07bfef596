package wechat

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

const reportRetryDelay = 500 * time.Millisecond // between attempts to report while the database is unavailable

// report returns the report of an attempt. mayHaveBeenSent means that an earlier attempt may have been delivered.
func (r *result) report(mayHaveBeenSent bool) task.Report {
	switch r.class {
	case sent:
		return task.Report{Outcome: task.SentOK}
	case noConsent:
		if mayHaveBeenSent {
			return task.Report{Outcome: task.SentUnknown, Final: true, ErrorCode: r.code, Message: "it is unknown whether an earlier attempt was delivered and used the user's consent: " + r.message}
		}
		return task.Report{Outcome: task.SentFailed, ErrorCode: r.code, Message: r.message}
	case transient, dataRefused:
		return task.Report{Outcome: task.SentFailed, ShouldRetry: r.class == transient, ErrorCode: r.code, Message: r.message}
	case unknown:
		return task.Report{Outcome: task.SentUnknown, ErrorCode: r.code, Message: r.message}
	default:
		return task.Report{Outcome: task.Released, RetryAfter: r.retryAfter, ErrorCode: r.code, Message: r.message}
	}
}

// report writes the result of a task to the database. After an error, report retries until reportBy, and for at least reportTime.
// If r is nil (see attempt), report only counts the task as lost.
func (b *batch) report(ctx context.Context, t tasks.Claimed, r *result) {
	if r == nil {
		b.count("lost")
		return
	}
	b.count(r.class.String())
	request, err := json.Marshal(map[string]string{"class": r.class.String(), "code": r.code, "message": r.message})
	if err != nil {
		b.addError(err)
		return
	}
	report := &tasks.Report{Report: r.report(b.sends[t.ID].MayHaveBeenSent), Request: request}
	report.TaskID, report.AppID, report.CallerID, report.ClaimID = t.ID, b.app, task.ServiceCaller, t.ClaimID
	deadline := b.reportBy
	if least := time.Now().Add(reportTime); least.After(deadline) {
		deadline = least
	}
	retries, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for {
		outs, errs := b.env.Tasks.Report([]*tasks.Report{report})
		if errs[0] == nil {
			b.wake(outs[0])
			return
		}
		select {
		case <-time.After(reportRetryDelay):
		case <-retries.Done():
			b.addError(errs[0])
			return
		}
	}
}

// wake schedules sweep for the time at which a reported task is due next. If the task is pending, wake wakes a claim.
func (b *batch) wake(out tasks.Reported) {
	if out.Verdict != task.Applied {
		return
	}
	b.env.WakeSweepAt(out.Task.DueAt)
	if out.Task.State == task.Pending {
		b.env.WakeClaims(out.Task.Queue, 1)
	}
}

func (b *batch) count(result string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results[result]++
}
