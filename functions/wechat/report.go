package wechat

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const reportPause = 500 * time.Millisecond // between the tries to report, while the database is away

// report is what the store is told of an attempt. doubtful: of an earlier try of
// the message nobody knows whether it was delivered.
func (r *result) report(doubtful bool) task.Report {
	switch r.class {
	case sent:
		return task.Report{Outcome: task.SentOK}
	case noConsent:
		if doubtful {
			return task.Report{Outcome: task.SentOK, ErrorCode: r.code, Message: "inferred: an earlier try, of which no answer came, used the user's consent: " + r.message}
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

// report keeps what came of a task, together with the reports of others. While
// the database is away it tries again as long as the call lasts.
func (b *batch) report(ctx context.Context, t store.Claimed, r *result) {
	if r == nil {
		b.count("lost")
		return
	}
	b.count(r.class.String())
	request, err := json.Marshal(map[string]string{"class": r.class.String(), "code": r.code, "message": r.message})
	if err != nil {
		b.fail(err)
		return
	}
	report := &store.Report{Report: r.report(b.sends[t.ID].Doubtful), Request: request}
	report.TaskID, report.AppID, report.CallerID, report.ClaimID = t.ID, b.app, task.ServiceCaller, t.ClaimID
	patience, cancel := context.WithDeadline(ctx, later(b.reportBy, time.Now().Add(settleTime)))
	defer cancel()
	for {
		outs, errs := b.db.Report([]*store.Report{report})
		if errs[0] == nil {
			b.tell(outs[0])
			return
		}
		select {
		case <-time.After(reportPause):
		case <-patience.Done():
			b.fail(errs[0])
			return
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// tell wakes who is to act on a report.
func (b *batch) tell(out store.Reported) {
	if out.Verdict != task.Applied {
		return
	}
	b.env.WakeSweepAt(out.Task.DueAt)
	if out.Task.State == task.Pending {
		b.env.WakeClaims(out.Task.Queue, 1)
	}
}

func (b *batch) count(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results[what]++
}
