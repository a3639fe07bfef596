package tasks

import (
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// receivedNames are the columns of receive_logs that describe a request.
const receivedNames = `request_id, caller_id, phone_number, content, use_template, source_ip, user_agent, request_data`

// receivedLog is the log row of a submission that created no task: a refused one or a replay.
type receivedLog struct {
	*Submission
	status   int
	id       *task.ID // the task of a replay; nil = refused
	response string   // JSON
}

func (st *Store) receivedLog(s *Submission, out Submitted) receivedLog {
	if r := out.Refused; r != nil {
		response := map[string]any{"error": r.Code, "message": store.Storable(r.Error())}
		return receivedLog{s, st.statusOf(r.Code), nil, store.MustJSON(response)}
	}
	response := map[string]any{"task_id": out.ID, "status": out.State.Status(), "replayed": true}
	return receivedLog{s, 200, &out.ID, store.MustJSON(response)}
}

var logReceived = store.BulkStatement[receivedLog]{Text: `
insert into receive_logs (@columns)
select * from unnest(@arrays) as t (@columns)`,
	Columns: func() []store.BulkColumn[receivedLog] {
		type log = receivedLog
		return []store.BulkColumn[log]{
			store.Array("request_id text", func(l log) string { return l.RequestID }),
			store.Array("caller_id bigint", func(l log) int64 { return l.CallerID }),
			store.Array("phone_number text", func(l log) *string { return store.OrNull(l.Phone) }),
			store.Array("content text", func(l log) string { return task.Cut(store.Storable(l.Draft.Content), task.MaxContent) }),
			store.Array("use_template boolean", func(l log) bool { return l.Draft.UseTemplate }),
			store.Array("source_ip text", func(l log) string { return l.SourceIP }),
			store.Array("user_agent text", func(l log) string { return l.loggedAgent() }),
			store.Array("request_data json", func(l log) string { return store.LogJSON(l.Request) }),
			store.Array("task_id uuid", func(l log) *task.ID { return l.id }),
			store.Array("response_data jsonb", func(l log) string { return l.response }),
			store.Array("status_code integer", func(l log) int32 { return int32(l.status) }),
		}
	},
}
