// Package report is the function that a sender app calls after every attempt:
//
//	POST /api/v1/sms/report
//	POST /api/v1/sms/report/batch
//
// The app decides whether a failure should be retried. Sendonce decides whether a retry is still allowed. A report may be repeated.
// A report of an older claim, or of another caller's claim, is refused and changes nothing.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Function serves the routes by which sender apps report attempts.
var Function = fn.HTTP("report", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.Routes {
	r := &reporter{env}
	return fn.Routes{
		"POST /api/v1/sms/report":       fn.JSON(fn.Sender, r.report).MaxBody(maxBody),
		"POST /api/v1/sms/report/batch": fn.JSON(fn.Sender, r.batch).MaxBody(maxBatchBody).Timeout(30 * time.Second),
	}
}

const (
	maxBody  = 1 << 20 // room for a long error_message, which is truncated, not refused
	maxBatch = 1000
	// maxBatchBody is 8 KiB for each of maxBatch reports: an error_message may be several times as long as its stored part.
	maxBatchBody  = maxBatch * 8 << 10
	maxRetryAfter = 7 * 24 * 3600 // seconds
)

type reporter struct{ env *fn.Env }

type (
	reportRequest api.ReportRequest
	batchRequest  api.ReportBatchRequest
)

func (r *reportRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.App(r.AppID)
	return append(bad, r.validate()...)
}

// Validate does not check the items: readItem validates each.
func (r *batchRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.App(r.AppID)
	bad.When(len(r.Items) == 0 || len(r.Items) > maxBatch, "items", "must have 1 to 1000 items")
	return bad
}

// validate checks all fields except app_id, which an item of a batch need not have.
func (r *reportRequest) validate() []task.Field {
	var bad decode.BadFields
	bad.When(r.TaskID == "", "task_id", "is required")
	bad.AtMost("error_code", r.ErrorCode, task.MaxErrorCode)
	bad.When(r.Status != nil && *r.Status != 2 && *r.Status != 3, "status", "must be 2 (SUCCESS) or 3 (FAILED)")
	bad.When(r.Status == nil && r.Outcome == "", "status", "is required: 2 (SUCCESS) or 3 (FAILED), unless outcome is given")
	bad.When(r.Status != nil && r.Outcome != "", "outcome", "must not be given together with status")
	bad.When(r.Outcome != "" && r.Outcome != "unknown" && r.Outcome != "released", "outcome", "must be unknown or released")
	bad.When(r.RetryAfterSeconds != nil && r.Outcome != "released", "retry_after_seconds", "needs outcome released")
	bad.When(r.RetryAfterSeconds != nil && (*r.RetryAfterSeconds < 0 || *r.RetryAfterSeconds > maxRetryAfter),
		"retry_after_seconds", fmt.Sprintf("must be between 0 and %d", maxRetryAfter))
	bad.Time("sent_at", r.SentAt)
	return bad
}

// convert converts a valid request for the store. The error is not_found if task_id is not a UUID.
func (r *reportRequest) convert(c *fn.Call, raw []byte) (*tasks.Report, error) {
	id, err := task.ParseID(r.TaskID)
	if err != nil {
		return nil, notFound()
	}
	return &tasks.Report{Queues: c.Caller.Queues, Request: raw, Report: task.Report{
		TaskID: id, AppID: r.AppID, CallerID: c.Caller.ID, ClaimID: int64(r.ClaimID), Outcome: r.outcome(), ShouldRetry: r.ShouldRetry,
		Message: r.ErrorMessage, ErrorCode: r.ErrorCode,
		RetryAfter: decode.SecondsOr(r.RetryAfterSeconds, 0), SentAt: decode.ValueOr(r.SentAt, time.Time{}),
	}}, nil
}

func (r *reportRequest) outcome() task.Outcome {
	switch {
	case r.Outcome == "unknown":
		return task.SentUnknown
	case r.Outcome == "released":
		return task.Released
	case *r.Status == task.Succeeded.Status():
		return task.SentOK
	default:
		return task.SentFailed
	}
}

func (r *reporter) report(_ context.Context, c *fn.Call, req reportRequest) (any, error) {
	report, err := req.convert(c, c.Body)
	if err != nil {
		return nil, err
	}
	outs, errs := r.env.Tasks.Report([]*tasks.Report{report})
	if errs[0] != nil {
		return nil, errs[0]
	}
	return r.respond(outs[0])
}

// batch returns for each item what report would return for it.
func (r *reporter) batch(ctx context.Context, c *fn.Call, req batchRequest) (any, error) {
	results := c.EachChunk(ctx, req.Items, func(items []json.RawMessage, results []api.BatchItem) { r.reportItems(c, req.AppID, items, results) })
	c.Log("items", len(req.Items))
	return api.BatchResponse{Items: results}, nil
}

func (r *reporter) reportItems(c *fn.Call, app string, items []json.RawMessage, results []api.BatchItem) {
	var reports []*tasks.Report
	var indexes []int // in items, of each report
	for i, raw := range items {
		report, err := readItem(c, raw, app)
		if err != nil {
			results[i] = c.Item(nil, err)
			continue
		}
		reports, indexes = append(reports, report), append(indexes, i)
	}
	c.LetOthersRun()
	outs, errs := r.env.Tasks.Report(reports)
	for n, i := range indexes {
		if errs[n] != nil {
			results[i] = c.Item(nil, errs[n])
			continue
		}
		data, err := r.respond(outs[n])
		results[i] = c.Item(data, err)
	}
}

// itemRequest is a report in a batch. Its app_id may be missing, because the batch has it.
type itemRequest reportRequest

func (r *itemRequest) Validate() []task.Field { return (*reportRequest)(r).validate() }

func readItem(c *fn.Call, raw json.RawMessage, app string) (*tasks.Report, error) {
	var item itemRequest
	if err := decode.Object(raw, &item); err != nil {
		return nil, err
	}
	if item.AppID != "" && item.AppID != app {
		return nil, task.Invalid([]task.Field{{Name: "app_id", Message: "differs from the batch's app_id; leave it out"}})
	}
	item.AppID = app
	return (*reportRequest)(&item).convert(c, raw)
}

// respond returns the response to a report. If the report changed the task, respond schedules sweep for when the task is due, and
// wakes a waiting claim if the task is pending again.
func (r *reporter) respond(out tasks.Reported) (any, error) {
	t := out.Task
	switch {
	case !out.Found:
		return nil, notFound()
	case out.Verdict == task.Stale:
		return nil, task.Refuse(task.CodeStaleClaim, "this claim is not the task's newest, or not this caller's, or the task's outcome is already settled differently; nothing was changed")
	case out.Verdict == task.Applied:
		r.env.WakeSweepAt(t.DueAt)
		if t.State == task.Pending {
			r.env.WakeClaims(t.Queue, 1)
		}
	}
	return api.ReportResponse{
		TaskID: t.ID.String(), Status: t.State.Status(), State: t.State.String(), Reason: t.Reason.String(),
		RetryCount: int(t.RetryCount), Already: out.Verdict == task.Already,
	}, nil
}

func notFound() error { return task.Refuse(task.CodeNotFound, "no such task") }
