package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// TimelineEvent is one line of a task's timeline, read from receive_logs, send_logs or report_logs. Fields that its log
// does not have are zero.
type TimelineEvent struct {
	At    time.Time `json:"-"`
	Event EventKind `json:"-"`

	AppID      string `json:"app_id"`
	ClaimID    int64  `json:"claim_id"`
	CallerID   *int64 `json:"caller_id"`   // of the submission, of the operator, or of a report by a caller that did not claim the task
	CallerName string `json:"caller_name"` // of the operator who decided
	State      string `json:"state"`       // the task's state after an operator's decision
	Status     int    `json:"status"`      // the status that a sender reported: 2 = succeeded, 3 = failed; 0 = none
	StatusCode int    `json:"status_code"` // the HTTP status of the response to a submission
	Verdict    string `json:"verdict"`     // a task.Verdict, or "extended" or "sending" (see EventExtended)
	ErrorCode  string `json:"error_code"`
	Message    string `json:"message"`
	RequestID  string `json:"request_id"`
	SourceIP   string `json:"source_ip"`
	UserAgent  string `json:"user_agent"`
}

// EventKind is the kind of a TimelineEvent.
type EventKind string

// The kinds of events of a timeline.
const (
	EventReceived EventKind = "received" // the submission that created the task
	EventReplayed EventKind = "replayed" // the same submission again
	EventClaimed  EventKind = "claimed"  // claimed by a sender app
	EventExtended EventKind = "extended" // a lease was extended; Verdict is "sending" if the call also marked the task as sending, else "extended"; Message is the end of the lease
	EventReport   EventKind = "report"   // a sender app's report
	EventVerdict  EventKind = "verdict"  // a lease ended, the task expired, or an operator or the submitter decided
)

// timelineSQL reads the newest lines of each log before a cursor. The order is by n, which counts the
// lines of each log from the newest: a page ends early if it has too many bytes, and must then have the newest lines of
// every log. Each log has a limit of its own, because a window over all lines of a task would sort them all. A decision is
// joined to its audit entry in operator_actions by the time, because one transaction wrote both.
const timelineSQL = `
select log, id, n, at, event, fields
from ((
    select 1 as log, id, row_number() over (order by id desc) as n, created_at as at,
        case when response_data ? 'replayed' then 'replayed' else 'received' end as event,
        jsonb_build_object('caller_id', caller_id, 'status_code', status_code, 'request_id', request_id, 'source_ip', source_ip,
            'user_agent', user_agent) as fields
    from (select * from receive_logs where task_id = $1 and ($3::bigint = 0 or id < $3) order by id desc limit $2) l
) union all (
    select 2, id, row_number() over (order by id desc), created_at, 'claimed',
        jsonb_build_object('app_id', app_id, 'claim_id', claim_id, 'request_id',
            case when jsonb_typeof(request_data -> 'request_id') = 'string' then request_data ->> 'request_id' end)
    from (select * from send_logs where task_id = $1 and ($4::bigint = 0 or id < $4) order by id desc limit $2) l
) union all (
    select 3, l.id, row_number() over (order by l.id desc), l.created_at,
        case when verdict in ('extended', 'sending') then 'extended' when request_data is null then 'verdict' else 'report' end,
        jsonb_build_object('app_id', app_id, 'claim_id', claim_id, 'caller_id', coalesce(l.caller_id, operator.id), 'caller_name', operator.name,
            'request_id', operator.request_id, 'state', operator.state, 'status', status, 'verdict', verdict, 'error_code', error_code, 'message', error_message)
    from (select * from report_logs where task_id = $1 and ($5::bigint = 0 or id < $5) order by id desc limit $2) l
    left join lateral (
        select a.caller_id, a.caller_name, a.request_id, a.after ->> 'state'
        from operator_actions a
        where l.verdict in ('cancelled', 'resolved', 'retried') and a.created_at = l.created_at and a.subject = $1::text
        limit 1
    ) operator (id, name, request_id, state) on true
)) e
order by n, log`

// TimelineCursor has the ids of the oldest lines of receive_logs, send_logs and report_logs that were
// returned so far; 0 = none.
type TimelineCursor [3]int64

// timelineLine is a row of timelineSQL.
type timelineLine struct {
	Log    int32
	ID     int64
	N      int64
	At     time.Time
	Event  EventKind
	Fields json.RawMessage
}

// Timeline returns a page of a task's history, oldest event first. The page has the newest lines of each log before
// a cursor, at most limit of each log. The next page has older lines; next is zero on the last page.
func (st *Store) Timeline(ctx context.Context, id task.ID, before TimelineCursor, limit int) (events []TimelineEvent, next TimelineCursor, err error) {
	lines, more, err := store.QueryPageBy(ctx, st.db.Read, len(before)*(limit+1), pgx.RowToStructByPos[timelineLine],
		timelineSQL, id, limit+1, before[0], before[1], before[2])
	if err != nil {
		return nil, next, store.Wrap("timeline", err)
	}
	oldest := before
	page := lines[:0]
	for _, l := range lines {
		if l.N > int64(limit) {
			more = true
			continue
		}
		page, oldest[l.Log-1] = append(page, l), l.ID
	}
	slices.SortFunc(page, func(a, b timelineLine) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Log, b.Log), cmp.Compare(a.ID, b.ID))
	})
	if more {
		next = oldest
	}
	events = make([]TimelineEvent, len(page))
	for i, l := range page {
		events[i] = TimelineEvent{At: l.At, Event: l.Event}
		if err := json.Unmarshal(l.Fields, &events[i]); err != nil {
			return nil, next, store.Wrap("timeline", err)
		}
	}
	return events, next, nil
}
