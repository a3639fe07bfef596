package subscribe

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	sendsPerPage    = 20
	defaultFailures = 10
	maxFailures     = 200
)

type sentRequest api.SubscribeSentRequest

func (r *sentRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("business_type", r.BusinessType, maxType)
	requireNumber(&bad, "business_id", r.BusinessID)
	bad.Text("template_type", r.TemplateType, maxType)
	requireNumber(&bad, "receiver_user_id", r.ReceiverUserID)
	return bad
}

// wasSent reports whether a message was sent, by this or another caller, so that no caller sends it a second time. With hidesOthers,
// the error for another caller's message is the one that send returns.
func (h *handlers) wasSent(ctx context.Context, c *fn.Call, req sentRequest) (any, error) {
	if !c.MayUseQueue(task.RecordedQueue) {
		if err := checkQueue(c, task.WeChatQueue); err != nil {
			return nil, err
		}
	}
	if err := checkBusinessType(c, req.BusinessType); err != nil {
		return nil, err
	}
	business, _ := req.BusinessID.Uint64() // both numbers are valid
	receiver, _ := req.ReceiverUserID.Uint64()
	l, err := h.env.Subscribe.FindLog(ctx, req.BusinessType, business, req.TemplateType, receiver)
	switch {
	case task.CodeOf(err) == task.CodeNotFound:
		return api.SubscribeSentResponse{}, nil
	case err != nil:
		return nil, err
	case hidesOthers(c) && l.CallerID != c.Caller.ID:
		return nil, subscribe.ErrOthersMessage()
	}
	status := int(l.Status)
	return api.SubscribeSentResponse{Sent: l.Status == task.SubscribeSent, ID: api.ID(l.ID), SendStatus: &status}, nil
}

type logsRequest api.SubscribeLogsRequest

func (r *logsRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Text("business_type", r.BusinessType, maxType)
	requireNumber(&bad, "business_id", r.BusinessID)
	bad.Page(r.Limit)
	return bad
}

func (h *handlers) logs(ctx context.Context, c *fn.Call, req logsRequest) (any, error) {
	if err := checkBusinessType(c, req.BusinessType); err != nil {
		return nil, err
	}
	business, _ := req.BusinessID.Uint64() // valid
	rows, more, err := h.env.Subscribe.BusinessLogs(ctx, req.BusinessType, business, c.ReadScope(), int64(req.After), decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, logResponse, func(l subscribe.Log) int64 { return l.ID }), err
}

type listRequest api.SubscribeListRequest

func (r *listRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	_, ok := parseLogCursor(r.After)
	bad.AfterIsValid(ok)
	bad.When(r.SendStatus != nil && (*r.SendStatus < 0 || *r.SendStatus > 2), "send_status", "must be 0 (sending), 1 (sent) or 2 (failed)")
	bad.AtMost("template_id", r.TemplateID, maxWeChatID)
	bad.AtMost("template_type", r.TemplateType, maxType)
	bad.AtMost("business_type", r.BusinessType, maxType)
	bad.Time("from", r.From)
	bad.Time("to", r.To)
	bad.When(r.From != nil && r.To != nil && !r.From.Before(*r.To), "to", "must be later than from")
	return bad
}

// defaultSpan is how far back list reads if the request has no from.
const defaultSpan = 7 * 24 * time.Hour

// list returns messages that are not archived, newest first: those of the caller, or of all callers if the caller may
// read all.
func (h *handlers) list(ctx context.Context, c *fn.Call, req listRequest) (any, error) {
	f := subscribe.LogFilter{
		CallerID: (*int64)(req.CallerID), Status: req.SendStatus, TemplateID: req.TemplateID, TemplateType: req.TemplateType, BusinessType: req.BusinessType,
		ReceiverUserID: string(req.ReceiverUserID), From: decode.ValueOr(req.From, time.Now().Add(-defaultSpan)), To: decode.ValueOr(req.To, time.Time{}),
	}
	if only := c.ReadScope(); only != nil {
		if f.CallerID != nil && *f.CallerID != *only {
			return nil, task.Refuse(task.CodeForbidden, "caller_id: this caller may list only its own messages")
		}
		f.CallerID = only
	}
	f.After, _ = parseLogCursor(req.After) // valid
	rows, more, err := h.env.Subscribe.Logs(ctx, f, decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, logResponse, logCursor), err
}

func logCursor(l subscribe.Log) string { return decode.TimeCursor(l.SendTime, l.ID) }

type failuresRequest api.SubscribeFailuresRequest

func (r *failuresRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Between("limit", r.Limit, 1, maxFailures)
	_, ok := parseLogCursor(r.After)
	bad.AfterIsValid(ok)
	return bad
}

// parseLogCursor reads the send time and the id of the last message of the previous page.
func parseLogCursor(text string) (cursor subscribe.LogCursor, ok bool) {
	cursor.At, cursor.ID, ok = decode.ParseTimeCursor(text, func(id string) (int64, error) { return strconv.ParseInt(id, 10, 64) })
	return cursor, ok
}

func (h *handlers) failures(ctx context.Context, c *fn.Call, req failuresRequest) (any, error) {
	after, _ := parseLogCursor(req.After) // valid
	rows, more, err := h.env.Subscribe.FailedLogs(ctx, c.ReadScope(), after, decode.ValueOr(req.Limit, defaultFailures))
	return fn.PageOf(rows, more, logResponse, logCursor), err
}

type statisticsRequest api.SubscribeStatisticsRequest

func (r *statisticsRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Time("since", r.Since)
	return bad
}

func (h *handlers) statistics(ctx context.Context, c *fn.Call, req statisticsRequest) (any, error) {
	rates, err := h.env.Subscribe.TemplateRates(ctx, decode.ValueOr(req.Since, time.Time{}), c.ReadScope())
	if err != nil {
		return nil, err
	}
	var all subscribe.TemplateRate
	statistics := api.SubscribeStatisticsResponse{Items: make([]api.SubscribeRate, len(rates))}
	for i, r := range rates {
		statistics.Items[i] = api.SubscribeRate{TemplateType: r.TemplateType, SubscribeCounts: counts(r)}
		all.Total, all.Success, all.Failed = all.Total+r.Total, all.Success+r.Success, all.Failed+r.Failed
	}
	statistics.SubscribeCounts = counts(all)
	return statistics, nil
}

func counts(r subscribe.TemplateRate) api.SubscribeCounts {
	c := api.SubscribeCounts{Total: r.Total, Success: r.Success, Failed: r.Failed}
	if r.Total > 0 {
		c.SuccessRate = math.Round(float64(r.Success)*10000/float64(r.Total)) / 100
	}
	return c
}

type detailRequest api.SubscribeDetailRequest

func (r *detailRequest) Validate() []task.Field {
	var bad decode.BadFields
	_, ok := parseSendCursor(r.After)
	bad.AfterIsValid(ok)
	return bad
}

// parseSendCursor reads the time and the task of the last send of the previous page.
func parseSendCursor(text string) (cursor subscribe.SendCursor, ok bool) {
	cursor.At, cursor.TaskID, ok = decode.ParseTimeCursor(text, task.ParseID)
	return cursor, ok
}

// detail returns a message with a page of its sends, newest first, each with the state of its task.
func (h *handlers) detail(ctx context.Context, c *fn.Call, req detailRequest) (any, error) {
	l, err := h.readableMessage(ctx, c)
	if err != nil {
		return nil, err
	}
	after, _ := parseSendCursor(req.After) // valid
	sends, more, err := h.env.Subscribe.History(ctx, l.ID, after, sendsPerPage)
	if err != nil {
		return nil, err
	}
	detail := api.SubscribeDetailResponse{SubscribeLogResponse: logResponse(l), Sends: make([]api.SubscribeSend, len(sends))}
	if more {
		last := sends[len(sends)-1]
		detail.NextAfter = decode.TimeCursor(last.CreatedAt, last.TaskID)
	}
	for i, s := range sends {
		send := &detail.Sends[i]
		*send = api.SubscribeSend{
			TaskID: s.TaskID.String(), TemplateID: s.TemplateID, ReceiverOpenID: s.ReceiverOpenID, MessageData: s.Data, PagePath: s.Page,
			Lang: s.Lang, MiniprogramState: s.MiniprogramState, CreatedAt: s.CreatedAt.UTC(),
		}
		t, err := h.env.Tasks.ByID(ctx, s.TaskID)
		switch {
		case task.CodeOf(err) == task.CodeNotFound: // an operator deleted the task from the archive
			continue
		case err != nil:
			return nil, err
		}
		send.State, send.Reason, send.Result, send.ErrorCode = t.State.String(), t.Reason.String(), t.Result, t.ErrorCode
		send.RetryCount, send.SentAt = int(t.RetryCount), fn.Instant(t.SentAt)
	}
	return detail, nil
}

func logResponse(l subscribe.Log) api.SubscribeLogResponse {
	return api.SubscribeLogResponse{
		ID: api.ID(l.ID), TemplateID: l.TemplateID, TemplateType: l.TemplateType, BusinessType: l.BusinessType,
		BusinessID: api.NumberOf(l.BusinessID), ReceiverUserID: api.NumberOf(l.ReceiverUserID), ReceiverOpenID: l.ReceiverOpenID,
		MessageData: l.Data, PagePath: l.Page, SendStatus: int(l.Status), SendTime: l.SendTime.UTC(), RetryCount: l.RetryCount,
		ErrorCode: l.ErrorCode, ErrorMessage: l.ErrorMessage, CallerID: api.ID(l.CallerID), TaskID: l.TaskID.String(),
		CreatedAt: l.CreatedAt.UTC(), UpdatedAt: l.UpdatedAt.UTC(), Archived: l.Archived,
	}
}
