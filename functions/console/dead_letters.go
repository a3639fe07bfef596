package console

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

// deadLettersPerPage is small because an event has up to 65,536 characters.
const deadLettersPerPage = "10"

func (p *page) deadLetters() error {
	query := p.query("after")
	query.Set("limit", deadLettersPerPage)
	response, err := get[api.Page[api.DeadLetterResponse]](p, "/api/v1/admin/dead-letters", query)
	if err != nil {
		return err
	}
	shown := api.Page[deadLetter]{NextAfter: response.NextAfter}
	var callers []api.ID
	for _, item := range response.Items {
		letter := readDeadLetter(item)
		shown.Items = append(shown.Items, letter)
		if letter.CallerID != nil {
			callers = append(callers, *letter.CallerID)
		}
	}
	if err := p.nameCallers(callers...); err != nil {
		return err
	}
	return p.show("dead_letters", p.T("Dead letters"), shown)
}

// deadLetter is a dead letter with the fields that could be read from its event.
type deadLetter struct {
	api.DeadLetterResponse
	Subject  string  // the id of a task, message or endpoint; "" if the event has none
	CallerID *api.ID // of the owner; nil if the event has none
	Sender   string  // of a message; "" for other events
}

// readDeadLetter reads the fields of an event, which is a CloudEvent, the data of a CloudEvent, or not JSON.
func readDeadLetter(d api.DeadLetterResponse) deadLetter {
	type fields struct {
		Subject     string  `json:"subject"`
		TaskID      string  `json:"task_id"`
		ServerMsgID string  `json:"server_msg_id"`
		EndpointID  string  `json:"endpoint_id"`
		From        string  `json:"from"`
		CallerID    *api.ID `json:"caller_id"`
	}
	var event struct {
		fields
		Data json.RawMessage `json:"data"`
	}
	var data fields
	_ = json.Unmarshal([]byte(d.Event), &event) // an error leaves fields empty
	_ = json.Unmarshal(event.Data, &data)
	return deadLetter{
		DeadLetterResponse: d,
		Subject:            cmp.Or(event.TaskID, event.ServerMsgID, event.EndpointID, data.TaskID, data.ServerMsgID, data.EndpointID, event.Subject),
		CallerID:           cmp.Or(event.CallerID, data.CallerID),
		Sender:             cmp.Or(event.From, data.From),
	}
}

func (p *page) dismissDeadLetter() error {
	path := "/api/v1/admin/dead-letters/" + p.id() + "/dismiss"
	err := p.API(http.MethodPost, path, api.DismissRequest{Reason: p.PostFormValue("reason")}, nil)
	return p.finish(err, "/console/dead-letters", (*page).deadLetters, "dismissed")
}
