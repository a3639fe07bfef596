package sender

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

const (
	reportBatch   = 500 // the most reports of one call
	maxCode       = 50  // characters
	maxMessage    = 500
	maxRetryAfter = 7 * 24 * time.Hour
	statusSent    = 2
	statusFailed  = 3
)

// reportOf makes the report of a result. If the outcome is OK, at becomes sent_at, else at is not used.
func reportOf(t api.ClaimedTask, result Result, at time.Time) api.ReportRequest {
	status, at := func(s int) *int { return &s }, at.UTC()
	report := api.ReportRequest{
		TaskID: t.TaskID, ClaimID: t.ClaimID, ErrorCode: text.Cut(text.Printable(result.Code, ' '), maxCode), ErrorMessage: text.Cut(result.Message, maxMessage),
	}
	switch result.Outcome {
	case OK:
		report.Status, report.SentAt = status(statusSent), &at
	case Failed:
		report.Status = status(statusFailed)
	case Retryable:
		report.Status, report.ShouldRetry = status(statusFailed), true
	case Released:
		seconds := retry.Seconds(min(result.RetryAfter, maxRetryAfter))
		report.Outcome, report.RetryAfterSeconds = "released", &seconds
	default:
		report.Outcome = "unknown"
	}
	return report
}

// pendingReport is a report that the server has neither accepted nor refused permanently.
type pendingReport struct {
	report    api.ReportRequest
	journaled bool      // the report is in the journal
	done      func()    // called after the server has accepted or permanently refused the report, or when the reporter gives up
	refusals  int       // how often the server has refused this report temporarily
	notBefore time.Time // the report is not sent again before this time
}

// reporter sends reports to the server in batches: reports that are added during a call are sent with the next calls.
type reporter struct {
	Config
	journal *journal

	mu      sync.Mutex
	waiting []pendingReport
	closed  bool
	wake    chan struct{} // receives an element when waiting or closed changes
}

func newReporter(cfg Config, j *journal) *reporter {
	return &reporter{Config: cfg, journal: j, wake: make(chan struct{}, 1)}
}

func (r *reporter) add(p ...pendingReport) { r.change(func() { r.waiting = append(r.waiting, p...) }) }

// close declares that no new reports will be added.
func (r *reporter) close() { r.change(func() { r.closed = true }) }

// change calls do, which changes the fields under mu, and wakes run.
func (r *reporter) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	select {
	case r.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// next removes a batch of the reports that may be sent now, and returns it. If the batch is empty, next must be called
// again after wait, or earlier if wake receives an element. done means that no report is left and the reporter is closed.
func (r *reporter) next() (batch []pendingReport, wait time.Duration, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var kept []pendingReport
	wait = maxPause
	for _, p := range r.waiting {
		if until := p.notBefore.Sub(now); until > 0 || len(batch) == reportBatch {
			kept, wait = append(kept, p), min(wait, max(until, 0))
		} else {
			batch = append(batch, p)
		}
	}
	r.waiting = kept
	return batch, wait, r.closed && len(batch)+len(kept) == 0
}

// run reports until the reporter is closed and empty, or until ctx ends.
func (r *reporter) run(ctx context.Context) {
	pause, down := minPause, outage{}
	for ctx.Err() == nil {
		batch, wait, done := r.next()
		if done {
			return
		}
		if len(batch) == 0 {
			select {
			case <-r.wake:
			case <-time.After(wait):
			case <-ctx.Done():
			}
			continue
		}
		remaining, refused, err := r.report(ctx, batch)
		r.add(remaining...)
		if reason := cmp.Or(err, refused); reason == nil {
			if lasted := down.end(); lasted > 0 {
				r.Log.InfoContext(ctx, "sender: reports are accepted again", "away", lasted.Round(time.Second).String())
			}
		} else if down.shouldLog(reason) {
			r.Log.WarnContext(ctx, LogReportFailed, "reports", len(remaining), "error", reason)
		}
		if err == nil {
			pause = minPause
			continue
		}
		sleep(ctx, pause)
		pause = min(2*pause, maxPause)
	}
	r.giveUp(ctx)
}

// report sends a batch with one call. It returns the reports that must be sent again: all of them if the call failed
// (err), else those that the server refused temporarily. Only these wait until notBefore; refused is the last of these
// refusals.
func (r *reporter) report(ctx context.Context, batch []pendingReport) (remaining []pendingReport, refused, err error) {
	reports := make([]api.ReportRequest, len(batch))
	for i, p := range batch {
		reports[i] = p.report
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	results, err := r.Client.ReportBatch(ctx, r.AppID, reports)
	if err != nil {
		return batch, nil, err
	}
	for i, p := range batch {
		refusal := results[i].Err
		if refusal != nil && !isFinal(refusal.Status) {
			p.refusals++
			p.notBefore = time.Now().Add(retry.Delay(minPause, maxPause, p.refusals))
			remaining, refused = append(remaining, p), refusal
			continue
		}
		if refusal != nil {
			r.Log.WarnContext(ctx, "sender: report refused", "task_id", p.report.TaskID, "claim_id", p.report.ClaimID, "error", refusal)
		}
		if p.journaled {
			r.journal.remove(p.report)
		}
		p.done()
	}
	return remaining, refused, nil
}

// isFinal reports whether a refusal with this status is permanent: the server would refuse the report again.
func isFinal(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// giveUp ends the attempts that are not yet reported. Journaled reports stay in the journal. The other reports, of
// tasks that were not sent, are dropped: the server settles these tasks when their leases end.
func (r *reporter) giveUp(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 { // the last call reported all
		return
	}
	journaled := 0
	for _, p := range r.waiting {
		if p.journaled {
			journaled++
		}
		p.done()
	}
	r.Log.WarnContext(ctx, "sender: stopped before all outcomes were reported", "in_journal", journaled, "not_sent", len(r.waiting)-journaled)
}
