package tasks

import (
	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// VerdictLog is one row of report_logs.
type VerdictLog struct {
	ID            task.ID
	claimID       int64
	appID         string
	status        int // the status number that the sender reported; 0 = none
	Verdict       task.Verdict
	errorCode     string
	Message       string
	request       string // JSON
	foreignCaller *int64 // the caller of a stale report; nil = another verdict, or this caller made the newest claim
}

var logVerdicts = store.BulkStatement[VerdictLog]{Columns: verdictColumns, Text: `
insert into report_logs (@columns)
select * from unnest(@arrays) as t (@columns)`}

// logForeign logs only the first report of each foreignCaller on a task, or a few if they run at the same time. If it
// logged all, any caller who knows the id of a task could fill the log.
var logForeign = store.BulkStatement[VerdictLog]{Text: `
insert into report_logs (@columns)
select t.* from unnest(@arrays) as t (@columns)
where not exists (select from report_logs l where l.task_id = t.task_id and l.caller_id = t.caller_id)`,
	Columns: func() []store.BulkColumn[VerdictLog] {
		return append(verdictColumns(), store.Array("caller_id bigint", func(l VerdictLog) *int64 { return l.foreignCaller }))
	},
}

func verdictColumns() []store.BulkColumn[VerdictLog] {
	return []store.BulkColumn[VerdictLog]{
		store.Array("task_id uuid", func(l VerdictLog) task.ID { return l.ID }),
		store.Array("claim_id bigint", func(l VerdictLog) *int64 { return store.OrNull(l.claimID) }),
		store.Array("app_id text", func(l VerdictLog) *string { return store.OrNull(l.appID) }),
		store.Array("status integer", func(l VerdictLog) *int32 { return store.OrNull(int32(l.status)) }),
		store.Array("verdict text", func(l VerdictLog) string { return string(l.Verdict) }),
		store.Array("error_code text", func(l VerdictLog) *string { return store.OrNull(l.errorCode) }),
		store.Array("error_message text", func(l VerdictLog) *string { return store.OrNull(task.Cut(l.Message, task.MaxResult)) }),
		store.Array("request_data json", func(l VerdictLog) *string { return store.OrNull(l.request) }),
	}
}

// QueueVerdicts adds the statements that write the logs.
func QueueVerdicts(batch *pgx.Batch, logs []VerdictLog) {
	type reporter struct {
		task   task.ID
		caller int64
	}
	var own, foreign []VerdictLog
	logged := map[reporter]bool{}
	for _, l := range logs {
		if l.foreignCaller == nil {
			own = append(own, l)
		} else if by := (reporter{l.ID, *l.foreignCaller}); !logged[by] {
			logged[by] = true
			foreign = append(foreign, l)
		}
	}
	logVerdicts.Queue(batch, own)
	logForeign.Queue(batch, foreign)
}
