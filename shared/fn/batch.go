package fn

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	// maxBatchFields limits the invalid fields in the response to a batch. When the items so far have more of them, the
	// response names only the first invalid field of each further item.
	maxBatchFields = 2000

	// maxItemErrors limits the errors in the log line of one batch.
	maxItemErrors = 10
)

// EachChunk calls work for each chunk of the items of a batch, with the results to fill, and returns all results.
// work must call LetOthersRun before it waits for its commit. EachChunk then waits before the next chunk until the call
// may run again. If it may not within memoryWait, EachChunk refuses the items of that chunk without calling work.
func (c *Call) EachChunk(ctx context.Context, items []json.RawMessage, work func(items []json.RawMessage, results []api.BatchItem)) []api.BatchItem {
	all := make([]api.BatchItem, len(items))
	for start, chunk := range chunks(items) {
		results := all[start : start+len(chunk)]
		err := c.memory.resume(ctx)
		if err == nil {
			work(chunk, results)
			continue
		}
		for i := range results {
			results[i] = c.Item(nil, err)
		}
	}
	return all
}

// LetOthersRun lets other large calls of the caller run until this call begins its next chunk or ends.
func (c *Call) LetOthersRun() { c.memory.pause() }

// chunks splits the items of a batch into chunks of at most chunkBytes. A larger item is a
// chunk of its own. chunks yields each chunk with the index of its first item.
func chunks(items []json.RawMessage) iter.Seq2[int, []json.RawMessage] {
	return func(yield func(int, []json.RawMessage) bool) {
		for start := 0; start < len(items); {
			end, size := start+1, len(items[start])
			for end < len(items) && size+len(items[end]) <= chunkBytes {
				size += len(items[end])
				end++
			}
			if !yield(start, items[start:end]) {
				return
			}
			start = end
		}
	}
}

// CheckItem returns an error if an item of a batch is larger than a body may be by default (see Route.MaxBody).
func CheckItem(item json.RawMessage) *task.Error {
	if len(item) > defaultMaxBody {
		return tooLarge(defaultMaxBody)
	}
	return nil
}

// Item returns the response to one item of a batch, with the code that a request with this item
// alone would get, and with the fields, unless there are too many (see maxBatchFields). The call's
// log line has the number of server errors (5xx), and only the first maxItemErrors of their texts:
// most server errors of a batch are the same.
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

// itemFields returns the invalid fields of an item. If the items so far have more than maxBatchFields
// invalid fields, itemFields returns only the first field of the item, and says that the item has more.
func (c *Call) itemFields(fields []task.Field) []api.Field {
	if c.badFields += len(fields); c.badFields <= maxBatchFields || len(fields) < 2 {
		return wireFields(fields)
	}
	return append(wireFields(fields[:1]), api.Field{Field: "body", Message: "has further bad fields"})
}
