package fn

import (
	"encoding/json"
	"iter"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	// maxBatchFields bounds the bad fields in the answer to one batch.
	maxBatchFields = 2000

	// maxItemErrors bounds the errors in the log line of one batch.
	maxItemErrors = 10
)

// Pieces divides the items of a batch into runs of at most Piece bytes, or of one
// item; each comes with the index of its first item.
func Pieces(items []json.RawMessage) iter.Seq2[int, []json.RawMessage] {
	return func(yield func(int, []json.RawMessage) bool) {
		for from := 0; from < len(items); {
			to, size := from+1, len(items[from])
			for to < len(items) && size+len(items[to]) <= Piece {
				size += len(items[to])
				to++
			}
			if !yield(from, items[from:to]) {
				return
			}
			from = to
		}
	}
}

// CheckItem refuses an item of a batch that is longer than a body of its own may be.
func CheckItem(item json.RawMessage) *task.Error {
	if len(item) > defaultMaxBody {
		return tooLarge(defaultMaxBody)
	}
	return nil
}

// Item is the answer to one item of a batch, shaped as if it had been sent
// alone. An error of the service goes to the call's log line: the first ones of a
// batch, which are most often the same, and how many there were.
func (c *Call) Item(data any, err error) api.BatchItem {
	if err == nil {
		return api.BatchItem{Code: http.StatusOK, Message: "success", Data: data}
	}
	refusal := refusalOf(err, c.RequestID)
	status := statusOf(refusal.Code)
	if status >= http.StatusInternalServerError {
		if c.itemsFailed++; c.itemsFailed <= maxItemErrors {
			c.Log("item_error", err.Error())
		}
	}
	return api.BatchItem{Code: status, Message: refusal.Message, Error: refusal.Code, Fields: c.itemFields(refusal.Fields)}
}

// itemFields names the bad fields of an item; once a batch has maxBatchFields of them,
// only the first one of each further item.
func (c *Call) itemFields(fields []task.Field) []api.Field {
	if c.badFields += len(fields); c.badFields <= maxBatchFields || len(fields) < 2 {
		return wireFields(fields)
	}
	return append(wireFields(fields[:1]), api.Field{Field: "body", Message: "has further bad fields"})
}
