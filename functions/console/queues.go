package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// queuesPerPage is small enough for a form in each row.
const queuesPerPage = "100"

func (s *site) queues(p *page) error {
	query := p.query("after")
	query.Set("limit", queuesPerPage)
	found, err := get[api.QueuesResponse](p, "/api/v1/admin/queues", query)
	if err != nil {
		return err
	}
	shown := queuesPage{NextAfter: found.NextAfter}
	for _, q := range found.Queues {
		shown.Queues = append(shown.Queues, shownQueue{q})
	}
	return p.show("queues", p.T("Queues"), shown)
}

type queuesPage struct {
	Queues    []shownQueue
	NextAfter string
}

// shownQueue counts each task once: in the API scheduled tasks are pending, too, and held ones processing, as in
// the original SMS API.
type shownQueue struct{ api.QueueState }

func (q shownQueue) Pending() int64 {
	return q.PendingNewTasks + q.PendingRetryTasks - q.ScheduledTasks
}

func (q shownQueue) Processing() int64 { return q.ProcessingTasks - q.HeldTasks }

// pauseForm is the data of the template "pause". It has the entered values if the form was refused, else those of the
// current pause.
type pauseForm struct{ Reason, Until, ReasonProblem, UntilProblem string }

// PauseForm returns the data of the template "pause"; pause is nil for a queue that is not paused.
func (p *page) PauseForm(pause *api.QueuePause) pauseForm {
	var shown api.QueuePause
	if pause != nil {
		shown = *pause
	}
	return pauseForm{p.Entered("reason", shown.Reason), p.Entered("until", instant(shown.Until)), p.Problem("reason"), p.Problem("until")}
}

// pauseQueue pauses the queue of the form. The queue may have no tasks.
func (s *site) pauseQueue(p *page) error {
	until, err := p.typedTime("until")
	if err == nil {
		err = p.changeQueue("pause", api.PauseRequest{Until: until, Reason: p.PostFormValue("reason")})
	}
	return p.finish(err, "/console/queues", s.queues, "queue_paused")
}

func (s *site) resumeQueue(p *page) error {
	err := p.changeQueue("resume", api.ResumeRequest{Reason: p.PostFormValue("reason")})
	return p.finish(err, "/console/queues", s.queues, "queue_resumed")
}

func (p *page) changeQueue(do string, body any) error {
	queue := p.PostFormValue("queue")
	if !task.ValidQueue(queue) {
		return p.badField("queue", task.QueueRule)
	}
	return p.API(http.MethodPost, "/api/v1/admin/queues/"+queue+"/"+do, body, nil)
}
