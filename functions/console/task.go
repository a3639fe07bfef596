package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

type taskPage struct {
	api.AdminTaskResponse
	Steps    []step
	Revealed bool
}

// MayBeChanged reports whether an operator can change the task: it is not archived, and its state allows an action.
func (t taskPage) MayBeChanged() bool { return !t.Task.Archived && bulkActions[t.Task.State] != nil }

// step is one line of a task's timeline: an event of the task, or a try of a webhook about it.
type step struct {
	At      time.Time
	Since   time.Duration // since the previous step; 0 for the first
	Event   *api.TaskEvent
	Webhook *webhookStep
}

// webhookStep is a try of a delivery.
type webhookStep struct {
	ID, EventType, URL string
	Number             int // of the try among the stored tries, from 1
	api.DeliveryTry
}

func (p *page) task() error { return p.showTask(false) }

// changeTask handles the buttons of a task: retry, cancel, resolve or reveal.
func (p *page) changeTask() error {
	path, do := "/api/v1/admin/tasks/"+p.id()+"/", p.PathValue("do")
	address := "/console/tasks/" + p.id()
	var err error
	switch do {
	case "retry", "cancel":
		_, err = post[api.RepairResponse](p, path+do+"?"+url.Values{"reason": {p.PostFormValue("reason")}}.Encode(), nil)
	case "resolve":
		_, err = post[api.RepairResponse](p, path+do, api.ResolveRequest{Outcome: p.PostFormValue("outcome"), Reason: p.PostFormValue("reason")})
	case "reveal":
		if err := p.API(http.MethodPost, path+do, nil, nil); err != nil {
			return err
		}
		p.setAddress(address)
		return p.showTask(true)
	default:
		return p.notFound()
	}
	if err != nil {
		return p.showRefused(err, address, (*page).task)
	}
	if back := p.PostFormValue("back"); back != "" {
		return p.done(localPath(back), do)
	}
	return p.done(address, do)
}

// showTask shows the task of the path. Phone numbers and the content are hidden unless revealed is true.
func (p *page) showTask(revealed bool) error {
	id := p.id()
	response, err := get[api.AdminTaskResponse](p, "/api/v1/admin/tasks/"+id, p.query("after"))
	if err != nil {
		return err
	}
	webhooks, err := p.webhooksOf(response.Task.TaskID)
	if err != nil {
		return err
	}
	callers := []api.ID{response.Task.CallerID}
	for _, event := range response.Timeline {
		if event.CallerID != nil {
			callers = append(callers, *event.CallerID)
		}
	}
	if err := p.nameCallers(callers...); err != nil {
		return err
	}
	if !revealed {
		maskTask(&response.Task)
		maskTimeline(response.Timeline, webhooks)
	}
	return p.show("task", p.T("Task"), taskPage{response, timeline(response.Timeline, webhooks), revealed})
}

// webhooksOf returns the deliveries about a task, or none if the visitor may not read deliveries.
func (p *page) webhooksOf(taskID string) ([]api.DeliveryResponse, error) {
	response, err := get[api.Page[api.DeliveryResponse]](p, "/api/v1/webhooks/deliveries", url.Values{"task_id": {taskID}})
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Status == http.StatusForbidden {
		return nil, nil
	}
	return response.Items, err
}

// timeline merges the events of a task and the tries of its webhooks, oldest first.
func timeline(events []api.TaskEvent, webhooks []api.DeliveryResponse) []step {
	var steps []step
	for i := range events {
		steps = append(steps, step{At: events[i].At, Event: &events[i]})
	}
	for _, d := range webhooks {
		for i, try := range d.Tries {
			steps = append(steps, step{At: try.At, Webhook: &webhookStep{d.ID, d.EventType, d.URL, i + 1, try}})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.At.Compare(b.At) })
	for i := 1; i < len(steps); i++ {
		steps[i].Since = steps[i].At.Sub(steps[i-1].At)
	}
	return steps
}

// backToTask redirects from the action of a form, which a browser requests at a reload, to the task's page.
func (p *page) backToTask() error { return p.redirect("/console/tasks/" + p.id()) }
