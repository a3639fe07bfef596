package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// queuesPerPage is small because each row has a form.
const queuesPerPage = "100"

func (p *page) queues() error {
	query := p.query("after")
	query.Set("limit", queuesPerPage)
	response, err := get[api.QueuesResponse](p, "/api/v1/admin/queues", query)
	if err != nil {
		return err
	}
	shown := api.Page[shownQueue]{NextAfter: response.NextAfter}
	for _, q := range response.Queues {
		shown.Items = append(shown.Items, shownQueue{q})
	}
	return p.show("queues", p.T("Queues"), shown)
}

// shownQueue counts each task once. The API counts scheduled tasks as pending, too, and held tasks as processing, as the
// original SMS API does.
type shownQueue struct{ api.QueueState }

func (q shownQueue) Pending() int64 {
	return q.PendingNewTasks + q.PendingRetryTasks - q.ScheduledTasks
}

func (q shownQueue) Processing() int64 { return q.ProcessingTasks - q.HeldTasks }

// pauseForm is the data of the template pause.
type pauseForm struct{ Reason, Until, ReasonProblem, UntilProblem string }

// PauseForm returns the form with the entered values if the form was refused, else with the values of the current pause (nil = not
// paused).
func (p *page) PauseForm(pause *api.QueuePause) pauseForm {
	var shown api.QueuePause
	if pause != nil {
		shown = *pause
	}
	return pauseForm{p.Entered("reason", shown.Reason), p.Entered("until", instant(shown.Until)), p.Problem("reason"), p.Problem("until")}
}

// pauseQueue pauses the queue of the form. The queue need not have tasks.
func (p *page) pauseQueue() error {
	until, err := p.typedTime("until")
	if err == nil {
		err = p.changeQueue("pause", api.PauseRequest{Until: until, Reason: p.PostFormValue("reason")})
	}
	return p.finish(err, "/console/queues", (*page).queues, "queue_paused")
}

func (p *page) resumeQueue() error {
	err := p.changeQueue("resume", api.ResumeRequest{Reason: p.PostFormValue("reason")})
	return p.finish(err, "/console/queues", (*page).queues, "queue_resumed")
}

func (p *page) changeQueue(do string, body any) error {
	queue := p.PostFormValue("queue")
	if !task.ValidQueue(queue) {
		return p.badField("queue", task.QueueRule)
	}
	return p.API(http.MethodPost, "/api/v1/admin/queues/"+queue+"/"+do, body, nil)
}
