package sender

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/retry"
	"github.com/sendonce/sendonce/shared/text"
)

const (
	reportBatch  = 500 // reports of one call, at most
	mostCode     = 50  // characters
	mostMessage  = 500
	longestAway  = 7 * 24 * time.Hour
	statusSent   = 2
	statusFailed = 3
)

// reportOf is what the server is told of an attempt that ended at the given time.
func reportOf(t api.ClaimedTask, result Result, at time.Time) api.ReportRequest {
	status, at := func(s int) *int { return &s }, at.UTC()
	report := api.ReportRequest{
		TaskID: t.TaskID, ClaimID: t.ClaimID, ErrorCode: text.Cut(text.Printable(result.Code, ' '), mostCode), ErrorMessage: text.Cut(result.Message, mostMessage),
	}
	switch result.Outcome {
	case OK:
		report.Status, report.SentAt = status(statusSent), &at
	case Failed:
		report.Status = status(statusFailed)
	case Retryable:
		report.Status, report.ShouldRetry = status(statusFailed), true
	case Released:
		seconds := retry.Seconds(min(result.RetryAfter, longestAway))
		report.Outcome, report.RetryAfterSeconds = "released", &seconds
	default:
		report.Outcome = "unknown"
	}
	return report
}

// pending is a report that the server has not answered.
type pending struct {
	report    api.ReportRequest
	journaled bool
	over      func() // to be called once nothing more is to be said
}

// reporter tells the server what became of attempts. A call carries whatever
// has come in during the call before.
type reporter struct {
	Config
	journal *journal

	mu      sync.Mutex
	waiting []pending
	closed  bool
	wake    chan struct{}
}

func newReporter(cfg Config, j *journal) *reporter {
	return &reporter{Config: cfg, journal: j, wake: make(chan struct{}, 1)}
}

func (r *reporter) add(p ...pending) { r.change(func() { r.waiting = append(r.waiting, p...) }) }

// close says that nothing more will be added.
func (r *reporter) close() { r.change(func() { r.closed = true }) }

func (r *reporter) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	select {
	case r.wake <- struct{}{}:
	default: // one is enough
	}
}

// next takes what is waiting; last says that nothing more will come.
func (r *reporter) next() (batch []pending, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.waiting), reportBatch)
	batch, r.waiting = r.waiting[:n:n], r.waiting[n:]
	return batch, r.closed && n == 0
}

// run reports until it is closed and all is said, or ctx ends: what is then
// left stays in the journal.
func (r *reporter) run(ctx context.Context) {
	rest, away := firstPause, outage{}
	for ctx.Err() == nil {
		batch, last := r.next()
		if last {
			return
		}
		if len(batch) == 0 {
			select {
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		kept, err := r.report(ctx, batch)
		r.add(kept...)
		if err == nil {
			rest = firstPause
			if lasted := away.end(); lasted > 0 {
				r.Log.InfoContext(ctx, "sender: reported again", "away", lasted.Round(time.Second).String())
			}
			continue
		}
		if away.isNew(err) {
			r.Log.WarnContext(ctx, LogNotReported, "reports", len(kept), "error", err)
		}
		sleep(ctx, rest)
		rest = min(2*rest, longestRest)
	}
	r.giveUp(ctx)
}

// report makes one call, and gives the reports that must be made again and why.
func (r *reporter) report(ctx context.Context, batch []pending) (kept []pending, why error) {
	reports := make([]api.ReportRequest, len(batch))
	for i, p := range batch {
		reports[i] = p.report
	}
	results, err := r.Client.ReportBatch(ctx, r.AppID, reports)
	if err != nil {
		return batch, err
	}
	for i, p := range batch {
		if i >= len(results) {
			return append(kept, batch[i:]...), errShort
		}
		refused := results[i].Err
		if refused != nil && !settles(refused.Status) {
			kept, why = append(kept, p), refused
			continue
		}
		if refused != nil {
			r.Log.WarnContext(ctx, "sender: report refused", "task_id", p.report.TaskID, "claim_id", p.report.ClaimID, "error", refused)
		}
		if p.journaled {
			r.journal.strike(p.report)
		}
		p.over()
	}
	return kept, why
}

var errShort = errors.New("the answer has fewer items than the call")

// settles tells whether a refusal is the last word on a report: the same report
// would be refused in the same way.
func settles(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// giveUp lets go of what could not be reported.
func (r *reporter) giveUp(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	journaled := 0
	for _, p := range r.waiting {
		if p.journaled {
			journaled++
		}
		p.over()
	}
	r.Log.WarnContext(ctx, "sender: ended before all was reported", "in_journal", journaled, "released", len(r.waiting)-journaled)
}
