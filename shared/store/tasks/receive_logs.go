package tasks

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const logReceivedSQL = `
insert into receive_logs (request_id, task_id, caller_id, phone_number, content, use_template, source_ip, user_agent,
    request_data, response_data, status_code)
select request_id, task_id, caller_id, nullif(phone_number, ''), content, use_template, source_ip, user_agent,
    request_data::jsonb, response_data::jsonb, status_code
from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::boolean[], $7::text[], $8::text[],
    $9::text[], $10::text[], $11::integer[])
as t (request_id, task_id, caller_id, phone_number, content, use_template, source_ip, user_agent, request_data,
    response_data, status_code)`

// receiveLogs collects the log rows of submissions that made no task: refused
// ones and replays.
type receiveLogs struct {
	statusOf                                  func(code string) int
	requestIDs, phones, contents, ips, agents []string
	requests, answers                         []string
	tasks                                     []*task.ID
	callers                                   []int64
	templates                                 []bool
	statuses                                  []int32
}

func newReceiveLogs(statusOf func(string) int) *receiveLogs { return &receiveLogs{statusOf: statusOf} }

func (l *receiveLogs) add(s *Submission, answer Submitted) {
	var id *task.ID
	status, body := 200, map[string]any{}
	if r := answer.Refused; r != nil {
		status = l.statusOf(r.Code)
		body["error"], body["message"] = r.Code, store.Storable(r.Error())
	} else {
		id = &answer.ID
		body["task_id"], body["status"], body["replayed"] = answer.ID, answer.State.Status(), true
	}
	l.requestIDs, l.tasks, l.callers = append(l.requestIDs, s.RequestID), append(l.tasks, id), append(l.callers, s.CallerID)
	l.phones, l.contents = append(l.phones, s.Phone), append(l.contents, task.Cut(store.Storable(s.Draft.Content), task.MaxContent))
	l.templates = append(l.templates, s.Draft.UseTemplate)
	l.ips, l.agents = append(l.ips, s.SourceIP), append(l.agents, s.loggedAgent())
	l.requests, l.answers = append(l.requests, store.LogJSON(s.Request)), append(l.answers, store.MustJSON(body))
	l.statuses = append(l.statuses, int32(status))
}

func (l *receiveLogs) queue(batch *pgx.Batch) {
	if len(l.requestIDs) > 0 {
		batch.Queue(logReceivedSQL, l.requestIDs, l.tasks, l.callers, l.phones, l.contents, l.templates, l.ips, l.agents,
			l.requests, l.answers, l.statuses)
	}
}

func (l *receiveLogs) write(ctx context.Context, to *pgxpool.Pool) error {
	var batch pgx.Batch
	l.queue(&batch)
	if batch.Len() == 0 {
		return nil
	}
	return to.SendBatch(ctx, &batch).Close()
}

// loggedAgent is the User-Agent header, which may hold any bytes.
func (s *Submission) loggedAgent() string { return task.Cut(store.Storable(s.UserAgent), 500) }
