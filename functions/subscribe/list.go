package subscribe

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	shownSends      = 20 // of a page of a message's history
	defaultFailures = 10
	maxFailures     = 200
)

// whose is the caller whose messages a list shows; nil for an admin, who sees all.
func whose(c *fn.Call) *int64 {
	if c.May(fn.Admin) {
		return nil
	}
	return &c.Caller.ID
}

// sentRequest is api.SubscribeSentRequest with its rules.
type sentRequest api.SubscribeSentRequest

// Validate names every field whose value is not acceptable.
func (r *sentRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.Text("business_type", r.BusinessType, maxType)
	number(&bad, "business_id", r.BusinessID)
	bad.Text("template_type", r.TemplateType, maxType)
	number(&bad, "receiver_user_id", r.ReceiverUserID)
	return bad
}

// sent tells whether a message is sent, of everybody's messages: a caller that did
// not hear of another's would send it a second time. A caller with granted business
// types is refused, as its order would be.
func (d *desk) sent(ctx context.Context, c *fn.Call, req sentRequest) (any, error) {
	if err := checkQueue(c, task.WeChatQueue); err != nil {
		return nil, err
	}
	if err := checkBusinessType(c, req.BusinessType); err != nil {
		return nil, err
	}
	business, _ := req.BusinessID.Uint64() // they decoded
	receiver, _ := req.ReceiverUserID.Uint64()
	l, err := d.db.SubscribeLogOf(ctx, req.BusinessType, business, req.TemplateType, receiver)
	switch {
	case task.CodeOf(err) == task.CodeNotFound:
		return api.SubscribeSentResponse{}, nil
	case err != nil:
		return nil, err
	case len(c.Caller.BusinessTypes) > 0 && l.CallerID != c.Caller.ID:
		return nil, store.ErrOthersMessage()
	}
	status := int(l.Status)
	return api.SubscribeSentResponse{Sent: l.Status == task.SubscribeSent, ID: api.ID(l.ID), SendStatus: &status}, nil
}

// logsRequest is api.SubscribeLogsRequest with its rules.
type logsRequest api.SubscribeLogsRequest

// Validate names every field whose value is not acceptable.
func (r *logsRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.Text("business_type", r.BusinessType, maxType)
	number(&bad, "business_id", r.BusinessID)
	bad.Page(r.Limit)
	return bad
}

func (d *desk) logs(ctx context.Context, c *fn.Call, req logsRequest) (any, error) {
	if err := checkBusinessType(c, req.BusinessType); err != nil {
		return nil, err
	}
	business, _ := req.BusinessID.Uint64() // it decoded
	rows, more, err := d.db.BusinessLogs(ctx, req.BusinessType, business, whose(c), int64(req.After), decode.PageLimit(req.Limit))
	return fn.PageOf(rows, more, wire, func(l store.SubscribeLog) int64 { return l.ID }), err
}

// failuresRequest is api.SubscribeFailuresRequest with its rules.
type failuresRequest api.SubscribeFailuresRequest

// Validate names every field whose value is not acceptable.
func (r *failuresRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.Between("limit", r.Limit, 1, maxFailures)
	_, ok := parseLogPlace(r.After)
	bad.After(ok)
	return bad
}

// parseLogPlace reads what follows a failure: its time in microseconds and its id.
func parseLogPlace(text string) (place store.LogPlace, ok bool) {
	place.At, place.ID, ok = parsePlace(text, func(id string) (int64, error) { return strconv.ParseInt(id, 10, 64) })
	return place, ok
}

// parsePlace reads the time in microseconds and the id of the row that ends a page;
// text is "" for the first page.
func parsePlace[ID any](text string, parse func(string) (ID, error)) (at time.Time, id ID, ok bool) {
	if text == "" {
		return at, id, true
	}
	micros, rest, _ := strings.Cut(text, ".")
	if at, ok = decode.ParseMicros(micros); !ok {
		return at, id, false
	}
	id, err := parse(rest)
	return at, id, err == nil
}

func (d *desk) failures(ctx context.Context, c *fn.Call, req failuresRequest) (any, error) {
	limit := defaultFailures
	if req.Limit != nil {
		limit = *req.Limit
	}
	after, _ := parseLogPlace(req.After) // valid
	rows, more, err := d.db.FailedLogs(ctx, whose(c), after, limit)
	return fn.PageOf(rows, more, wire, func(l store.SubscribeLog) string { return fmt.Sprintf("%d.%d", l.SendTime.UnixMicro(), l.ID) }), err
}

// statisticsRequest is api.SubscribeStatisticsRequest with its rules.
type statisticsRequest api.SubscribeStatisticsRequest

// Validate names every field whose value is not acceptable.
func (r *statisticsRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.Time("since", r.Since)
	return bad
}

func (d *desk) statistics(ctx context.Context, c *fn.Call, req statisticsRequest) (any, error) {
	var since time.Time
	if req.Since != nil {
		since = *req.Since
	}
	rates, err := d.db.TemplateRates(ctx, since, whose(c))
	if err != nil {
		return nil, err
	}
	var all store.TemplateRate
	answer := api.SubscribeStatisticsResponse{Items: make([]api.SubscribeRate, len(rates))}
	for i, r := range rates {
		answer.Items[i] = api.SubscribeRate{TemplateType: r.TemplateType, SubscribeCounts: counts(r)}
		all.Total, all.Success, all.Failed = all.Total+r.Total, all.Success+r.Success, all.Failed+r.Failed
	}
	answer.SubscribeCounts = counts(all)
	return answer, nil
}

func counts(r store.TemplateRate) api.SubscribeCounts {
	c := api.SubscribeCounts{Total: r.Total, Success: r.Success, Failed: r.Failed}
	if r.Total > 0 {
		c.SuccessRate = math.Round(float64(r.Success)*10000/float64(r.Total)) / 100
	}
	return c
}

// detailRequest is api.SubscribeDetailRequest with its rules.
type detailRequest api.SubscribeDetailRequest

// Validate names every field whose value is not acceptable.
func (r *detailRequest) Validate() []task.Field {
	var bad decode.Rules
	_, ok := parseSendPlace(r.After)
	bad.After(ok)
	return bad
}

// parseSendPlace reads what follows a send: its time in microseconds and its task.
func parseSendPlace(text string) (place store.SendPlace, ok bool) {
	place.At, place.TaskID, ok = parsePlace(text, task.ParseID)
	return place, ok
}

// detail gives a message with a page of its sends, newest first, each with what became
// of its task.
func (d *desk) detail(ctx context.Context, c *fn.Call, req detailRequest) (any, error) {
	l, err := d.own(ctx, c)
	if err != nil {
		return nil, err
	}
	after, _ := parseSendPlace(req.After) // valid
	sends, more, err := d.db.SubscribeHistory(ctx, l.ID, after, shownSends)
	if err != nil {
		return nil, err
	}
	answer := api.SubscribeDetailResponse{SubscribeLogResponse: wire(l), Sends: make([]api.SubscribeSend, len(sends))}
	if more {
		last := sends[len(sends)-1]
		answer.NextAfter = fmt.Sprintf("%d.%s", last.CreatedAt.UnixMicro(), last.TaskID)
	}
	for i, s := range sends {
		t, err := d.db.Task(ctx, s.TaskID)
		if err != nil {
			return nil, err
		}
		answer.Sends[i] = api.SubscribeSend{
			TaskID: s.TaskID.String(), TemplateID: s.TemplateID, ReceiverOpenID: s.ReceiverOpenID, MessageData: s.Data, PagePath: s.Page,
			Lang: s.Lang, MiniprogramState: s.MiniprogramState, State: t.State.String(), Reason: t.Reason.String(), Result: t.Result,
			ErrorCode: t.ErrorCode, RetryCount: int(t.RetryCount), CreatedAt: s.CreatedAt.UTC(), SentAt: fn.Instant(t.SentAt),
		}
	}
	return answer, nil
}

// wire is a row as its caller and an admin see it.
func wire(l store.SubscribeLog) api.SubscribeLogResponse {
	return api.SubscribeLogResponse{
		ID: api.ID(l.ID), TemplateID: l.TemplateID, TemplateType: l.TemplateType, BusinessType: l.BusinessType,
		BusinessID: api.NumberOf(l.BusinessID), ReceiverUserID: api.NumberOf(l.ReceiverUserID), ReceiverOpenID: l.ReceiverOpenID,
		MessageData: l.Data, PagePath: l.Page, SendStatus: int(l.Status), SendTime: l.SendTime.UTC(), RetryCount: l.RetryCount,
		ErrorCode: l.ErrorCode, ErrorMessage: l.ErrorMessage, CallerID: api.ID(l.CallerID), TaskID: l.TaskID.String(),
		CreatedAt: l.CreatedAt.UTC(), UpdatedAt: l.UpdatedAt.UTC(), Archived: l.Archived,
	}
}
