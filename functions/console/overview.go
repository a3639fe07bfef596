package console

import (
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

type overviewPage struct {
	api.OverviewResponse
	Stale bool // the numbers are older than a minute, because the database does not respond
	Total totals
	Plot  plot
	Rows  []queueRow
}

// queueRow is a queue with its plot. The last row may be the sum of all queues that have no row of their own. This row has no name.
type queueRow struct {
	api.QueueOverview
	Plot plot
}

// totals are sums over all queues.
type totals struct {
	Pending, Processing, Scheduled, Held, LeaseTimeouts int64
	More                                                bool    // some counts may be too low, because the API counts only up to a limit
	OldestSeconds                                       float64 // the maximum, not a sum; without paused queues
}

// overview is the first page. It redirects a submitter that is no viewer to its tasks.
func (p *page) overview() error {
	if !p.May(fn.Viewer) {
		if p.May(fn.Submitter) {
			return p.redirect("/console/tasks")
		}
		return &api.Error{Status: http.StatusForbidden, Message: p.T("The console is for callers with the role admin, viewer or submitter.")}
	}
	response, err := get[api.OverviewResponse](p, "/api/v1/admin/overview", nil)
	if err != nil {
		return err
	}
	shown := overviewPage{OverviewResponse: response, Stale: time.Since(response.At) > time.Minute}
	all := response.Queues
	if response.OtherQueues != nil {
		all = append(all, *response.OtherQueues)
	}
	var throughput []api.Throughput // of all queues
	for _, q := range all {
		shown.Total.add(q)
		shown.Rows = append(shown.Rows, queueRow{q, p.newPlot(smallPlot, response.At, q.Throughput)})
		throughput = append(throughput, q.Throughput...)
	}
	shown.Plot = p.newPlot(largePlot, response.At, throughput)
	return p.show("overview", p.T("Overview"), shown)
}

func (t *totals) add(q api.QueueOverview) {
	t.Pending += int64(q.Pending.N)
	t.Processing += int64(q.Processing.N)
	t.Scheduled += int64(q.Scheduled.N)
	t.Held += int64(q.Held.N)
	t.LeaseTimeouts += q.LeaseTimeouts
	t.More = t.More || q.Pending.More || q.Processing.More || q.Scheduled.More || q.Held.More
	if q.Pause == nil {
		t.OldestSeconds = max(t.OldestSeconds, q.Pending.OldestSeconds)
	}
}

func (p *page) senders() error {
	return showGet[api.OverviewResponse](p, "/api/v1/admin/overview", nil, "senders", p.T("Sender apps"))
}
