package console

import (
	"net/http"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

type overviewPage struct {
	api.OverviewResponse
	Stale bool // the snapshot is more than a minute old: the database does not respond
	Total totals
	Plot  plot
	Rows  []queueRow
}

// queueRow is a queue with its own plot; the last may be the sum of all other queues, without a name.
type queueRow struct {
	api.QueueOverview
	Plot plot
}

// totals are sums over all queues.
type totals struct {
	Pending, Processing, Scheduled, Held, LeaseTimeouts int64
	More                                                bool // there are more than counted
	OldestSeconds                                       float64
	Paused                                              int
}

// overview is the first page. A submitter's first page is its own tasks.
func (s *site) overview(p *page) error {
	if !p.May(fn.Viewer) {
		if p.May(fn.Submitter) {
			return p.redirect("/console/tasks")
		}
		return &api.Error{Status: http.StatusForbidden, Message: p.T("The console is for callers with the role admin, viewer or submitter.")}
	}
	found, err := get[api.OverviewResponse](p, "/api/v1/admin/overview", nil)
	if err != nil {
		return err
	}
	shown := overviewPage{OverviewResponse: found, Stale: time.Since(found.At) > time.Minute}
	all := found.Queues
	if found.OtherQueues != nil {
		all = append(all, *found.OtherQueues)
	}
	var throughput []api.Throughput
	for _, q := range all {
		shown.Total.add(q)
		shown.Rows = append(shown.Rows, queueRow{q, p.newPlot(smallPlot, found.At, q.Throughput)})
		throughput = append(throughput, q.Throughput...)
	}
	shown.Plot = p.newPlot(largePlot, found.At, throughput)
	return p.show("overview", p.T("Overview"), shown)
}

func (t *totals) add(q api.QueueOverview) {
	t.Pending += int64(q.Pending.N)
	t.Processing += int64(q.Processing.N)
	t.Scheduled += int64(q.Scheduled.N)
	t.Held += int64(q.Held.N)
	t.LeaseTimeouts += q.LeaseTimeouts
	t.More = t.More || q.Pending.More || q.Processing.More || q.Scheduled.More || q.Held.More
	if q.Pause != nil {
		t.Paused++
	} else {
		t.OldestSeconds = max(t.OldestSeconds, q.Pending.OldestSeconds)
	}
}

// senders lists the sender apps.
func (s *site) senders(p *page) error {
	found, err := get[api.OverviewResponse](p, "/api/v1/admin/overview", nil)
	if err != nil {
		return err
	}
	return p.show("senders", p.T("Sender apps"), found)
}
