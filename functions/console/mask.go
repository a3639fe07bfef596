package console

import (
	"encoding/json"
	"strings"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

// maskTexts masks phone numbers in texts that callers have written, such as the result of a task.
func maskTexts(texts ...*string) {
	for _, text := range texts {
		*text = task.MaskNumbers(*text)
	}
}

// maskTask masks phone numbers in the texts of a task. The template masks the phone number of the task itself.
func maskTask(t *api.AdminTask) {
	maskTexts(&t.Result, &t.ErrorCode, &t.Source, &t.AppID, &t.CallbackURL)
	t.Metadata = json.RawMessage(task.MaskNumbers(string(t.Metadata)))
}

func maskTasks(tasks []api.AdminTask) {
	for i := range tasks {
		maskTask(&tasks[i])
	}
}

// maskTimeline masks phone numbers in the texts of a task's events and of the tries of its webhooks.
func maskTimeline(events []api.TaskEvent, webhooks []api.DeliveryResponse) {
	for i := range events {
		maskTexts(&events[i].AppID, &events[i].ErrorCode, &events[i].Message)
	}
	for i := range webhooks {
		maskTexts(&webhooks[i].URL)
		for j := range webhooks[i].Tries {
			maskTexts(&webhooks[i].Tries[j].Error)
		}
	}
}

// maskedEvent returns the body of a webhook, indented and with masked phone numbers in its field data. Numbers outside of data, such as
// sequence, are not phone numbers and are not masked. If data is not found, numbers in the whole body are masked.
func maskedEvent(payload json.RawMessage) string {
	body := pretty(string(payload))
	var event struct{ Data json.RawMessage }
	if json.Unmarshal([]byte(body), &event) != nil {
		return task.MaskNumbers(body)
	}
	data := string(event.Data)
	for _, key := range []string{`"data": `, `"data":`} { // pretty does not indent every body
		if before, after, found := strings.Cut(body, key+data); found {
			return before + key + task.MaskNumbers(data) + after
		}
	}
	return task.MaskNumbers(body)
}
