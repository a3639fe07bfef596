package console

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

const subscribePath = "/api/v1/subscribe/"

// sendStatuses has the names of send_status, by its number.
var sendStatuses = []string{"sending", "sent", "failed"}

type subscribePage struct {
	api.Page[api.SubscribeLogResponse]
	Statuses []string
}

func (p *page) subscribeMessages() error {
	response, err := getFiltered[api.Page[api.SubscribeLogResponse]](p, subscribePath+"messages",
		"send_status", "template_id", "template_type", "business_type", "receiver_user_id", "caller_id", "from", "to", "limit", "after")
	if err != nil {
		return err
	}
	return p.show("subscribe_messages", p.T("Subscribe messages"), subscribePage{response, sendStatuses})
}

type subscribeMessagePage struct {
	api.SubscribeDetailResponse
	Revealed bool
}

func (p *page) subscribeMessage() error {
	response, err := p.readSubscribeMessage()
	if err != nil {
		return err
	}
	maskTexts(&response.ErrorCode, &response.ErrorMessage)
	for i := range response.Sends {
		maskTexts(&response.Sends[i].ErrorCode, &response.Sends[i].Result)
	}
	return p.show("subscribe_message", p.T("Subscribe message"), subscribeMessagePage{response, false})
}

func (p *page) readSubscribeMessage() (api.SubscribeDetailResponse, error) {
	response, err := get[api.SubscribeDetailResponse](p, subscribePath+p.id(), p.query("after"))
	if err != nil {
		return response, err
	}
	return response, p.nameCallers(response.CallerID)
}

// revealSubscribe shows the contents of the sends of a message. Each send is a task, and the API writes an audit entry for each task: for
// the same task and visitor at most one an hour.
func (p *page) revealSubscribe() error {
	response, err := p.readSubscribeMessage()
	if err != nil {
		return err
	}
	for _, send := range response.Sends {
		if send.State == "" {
			continue // the task is deleted, so the template does not show the contents
		}
		if err := p.API(http.MethodPost, "/api/v1/admin/tasks/"+send.TaskID+"/reveal", nil, nil); err != nil {
			return err
		}
	}
	p.setAddress("/console/subscribe/" + p.id())
	return p.show("subscribe_message", p.T("Subscribe message"), subscribeMessagePage{response, true})
}

func (p *page) resendSubscribe() error {
	id := p.id()
	sent, err := post[api.SubscribeResponse](p, subscribePath+id+"/resend", api.SubscribeResendRequest{Reason: p.PostFormValue("reason"), Force: p.PostFormValue("force") != ""})
	if err != nil {
		return p.showRefused(err, "/console/subscribe/"+id, (*page).subscribeMessage)
	}
	notice := "subscribe_resent"
	if sent.Skipped {
		notice = "subscribe_skipped"
	}
	return p.done("/console/subscribe/"+id, notice)
}

func (p *page) subscribeStatistics() error {
	query := p.query("since")
	pastTimes(query, "since")
	return showFiltered[api.SubscribeStatisticsResponse](p, subscribePath+"statistics", query, "subscribe_statistics", p.T("Statistics of subscribe messages"))
}

func (p *page) subscribeTemplates() error {
	response, err := get[api.SubscribeTemplatesResponse](p, "/api/v1/admin/subscribe-templates", p.query("limit", "after"))
	if err != nil {
		return err
	}
	var callers []api.ID
	for _, template := range response.Templates {
		callers = append(callers, template.CallerID)
	}
	if err := p.nameCallers(callers...); err != nil {
		return err
	}
	return p.show("subscribe_templates", p.T("Templates with errors"), response)
}

func (p *page) resumeSubscribeTemplate() error {
	template := p.PostFormValue("template_id")
	number, err := strconv.ParseInt(p.PostFormValue("caller_id"), 10, 64)
	if err != nil || template == "" {
		return p.notFound()
	}
	caller, path := api.ID(number), "/api/v1/admin/subscribe-templates/"+url.PathEscape(template)+"/resume"
	resumed, err := post[api.ResumeTemplateResponse](p, path, api.ResumeTemplateRequest{CallerID: &caller, Reason: p.PostFormValue("reason")})
	if err != nil {
		return p.showRefused(err, "/console/subscribe/templates", (*page).subscribeTemplates)
	}
	return p.doneMany("/console/subscribe/templates", "subscribe_template_resumed", int(resumed.DueTasks))
}

// SeesTemplates reports whether the visitor may see the templates of subscribe messages, which belong to the queue wechat.
func (p *page) SeesTemplates() bool {
	return p.ReadsAll() || p.May(fn.Viewer) && slices.Contains(p.Caller.Queues, task.WeChatQueue)
}
