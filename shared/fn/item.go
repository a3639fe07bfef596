package fn

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

// Item is the answer to one item of a batch, shaped as if it had been sent
// alone. An error that is ours to mend goes to the call's log line.
func (c *Call) Item(data any, err error) api.BatchItem {
	if err == nil {
		return api.BatchItem{Code: http.StatusOK, Message: "success", Data: data}
	}
	refusal := refusalOf(err, c.RequestID)
	status := statusOf(refusal.Code)
	if status >= http.StatusInternalServerError {
		c.Log("item_error", err.Error())
	}
	return api.BatchItem{Code: status, Message: refusal.Message, Error: refusal.Code, Fields: wireFields(refusal.Fields)}
}
