package admin

import (
	"context"
	"slices"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/alerts"
	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/task"
)

// overview returns a recent snapshot or, if the database is unavailable, the last snapshot that this process has read. The
// field at is the time of the snapshot.
func (h *handlers) overview(_ context.Context, c *fn.Call, _ struct{}) (any, error) {
	s, err := h.env.Snapshot()
	if err != nil && s.At.IsZero() {
		return nil, err
	}
	if err != nil {
		c.Log("snapshot", err.Error())
	}
	response := api.OverviewResponse{At: s.At.UTC(), CountedTo: s.CountedTo.UTC(), Queues: []api.QueueOverview{}, Alerts: []api.AlertResponse{}}
	for _, q := range s.Queues {
		if c.MayUseQueue(q.Name) {
			response.Queues = append(response.Queues, queueOverview(q))
		}
	}
	for _, a := range s.Alerts {
		if !c.LimitedToQueues() || a.Kind != task.AlertStreamFull && c.MayUseQueue(a.Queue) { // Queue of AlertStreamFull names a stream
			response.Alerts = append(response.Alerts, alertResponse(alerts.Alert{ID: a.ID, Since: a.Since, Alert: a.Alert}))
		}
	}
	if c.LimitedToQueues() {
		return response, nil
	}
	if other := queueOverview(s.OtherQueues); other.Submitted+other.Claims > 0 || s.OtherQueues.Live().N > 0 {
		response.OtherQueues = &other
	}
	for _, app := range slices.SortedFunc(slices.Values(s.Senders), func(a, b overview.Sender) int { return b.LastClaim.Compare(a.LastClaim) }) {
		response.Senders = append(response.Senders, senderOverview(app))
	}
	response.Service = serviceOverview(s)
	return response, nil
}

func queueOverview(q overview.Queue) api.QueueOverview {
	response := api.QueueOverview{
		Queue: q.Name, Scheduled: api.Count(q.Scheduled), Pending: backlog(q.Pending), Retries: api.Count(q.Retries), Processing: backlog(q.Processing), Held: backlog(q.Held),
		Submitted: q.Totals.Submitted, Claims: q.Totals.Claims, LeaseTimeouts: q.Totals.LeaseTimeouts, Succeeded: q.Totals.Succeeded,
		Failed: map[string]int64{}, Throughput: make([]api.Throughput, len(q.Throughput)),
	}
	if p := q.Pause; p != nil {
		response.Pause = &api.QueuePause{Queue: q.Name, Until: fn.Instant(p.Until), Reason: p.Reason, PausedBy: p.By, ByHand: p.Manual, CreatedAt: p.Since.UTC()}
	}
	for reason, n := range q.Totals.Failed {
		response.Failed[reason.String()] = n
	}
	for i, t := range q.Throughput {
		response.Throughput[i] = api.Throughput{Since: t.Since.UTC(), Submitted: t.Submitted, Succeeded: t.Succeeded, Failed: t.Failed}
	}
	return response
}

func senderOverview(s overview.Sender) api.SenderOverview {
	return api.SenderOverview{
		AppID: s.App, Processing: api.Count(s.Processing), Succeeded: s.Succeeded, Failed: s.Failed, Timeouts: s.Timeouts,
		LastClaim: fn.Instant(s.LastClaim), LastReport: fn.Instant(s.LastReport),
	}
}

func serviceOverview(s overview.Snapshot) *api.ServiceOverview {
	return &api.ServiceOverview{
		PausedStreams: nonNilCopy(s.PausedStreams), PausedTemplates: api.Count(s.PausedTemplates), DeadLetters: api.Count(s.DeadLetters),
		Events: backlog(s.Events), MessagesDue: backlog(s.Messages.Due), StuckSending: api.Count(s.Messages.StuckSending), StuckSent: api.Count(s.Messages.StuckSent),
		DeliveriesDue: backlog(s.Webhooks.Due), DeliveriesRetrying: api.Count(s.Webhooks.Retrying), Delivered: s.Webhooks.Delivered,
		DeliveriesFailed: s.Webhooks.Failed, EndpointsFailing: s.Webhooks.Failing, EndpointsDisabled: s.Webhooks.Disabled,
	}
}

func backlog(b overview.Backlog) api.Backlog {
	return api.Backlog{Count: api.Count(b.Count), OldestSeconds: *seconds(&b.Oldest)}
}
