package console

import (
	"encoding/json"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// maskTexts masks phone numbers in texts that callers write, such as the result of a task.
func maskTexts(texts ...*string) {
	for _, text := range texts {
		*text = task.MaskNumbers(*text)
	}
}

// maskTask masks the phone numbers in all texts of a task; the template masks its own phone number.
func maskTask(t *api.AdminTask) {
	maskTexts(&t.Result, &t.ErrorCode, &t.Source, &t.AppID, &t.CallbackURL)
	t.Metadata = json.RawMessage(task.MaskNumbers(string(t.Metadata)))
}

func maskTasks(tasks []api.AdminTask) {
	for i := range tasks {
		maskTask(&tasks[i])
	}
}

// maskTimeline masks the phone numbers in the texts of a task's history and of the tries of its webhooks.
func maskTimeline(events []api.TaskEvent, webhooks []api.DeliveryResponse) {
	for i := range events {
		e := &events[i]
		maskTexts(&e.AppID, &e.ErrorCode, &e.Message)
	}
	for i := range webhooks {
		maskTexts(&webhooks[i].URL)
		for j := range webhooks[i].Tries {
			maskTexts(&webhooks[i].Tries[j].Error)
		}
	}
}

// maskedEvent returns the body of a webhook for display, with masked phone numbers in its data. The other fields have
// numbers that are none, such as sequence.
func maskedEvent(payload json.RawMessage) string {
	body := pretty(string(payload))
	var event struct{ Data json.RawMessage }
	if json.Unmarshal([]byte(body), &event) != nil {
		return task.MaskNumbers(body)
	}
	data := string(event.Data)
	return strings.Replace(body, `"data": `+data, `"data": `+task.MaskNumbers(data), 1)
}
