package tasks

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Filter narrows a list of tasks; a zero field does not.
type Filter struct {
	State    *task.State
	Reason   task.Reason // of a failure
	Phone    string
	Source   string
	Queue    string
	Queues   []string // those that may be listed; empty = all
	CallerID *int64
	From     time.Time // made at or after it
	To       time.Time // made before it
	After    task.ID   // the last id of the page before; zero = the first page
	Limit    int
}

// Page is one page of a list of tasks, newest first.
type Page struct {
	Tasks []Detail
	Next  task.ID // what the next page comes After; zero = this is the last page
}

// scanRows bounds the index entries that one page looks through. A filter that
// few tasks pass gives short pages, even empty ones, and never a long query.
const scanRows = 10_000

// listColumns and listTail surround what drives a list: a from clause that
// gives bodies t in the order of the index it walks. The lateral subqueries
// keep the planner from walking anything else.
const listColumns = `select ` + bodyColumns + `, s.*, now() `

const listTail = `
cross join lateral (
    select ` + liveColumns + ` from task_live l where l.id = t.id
    union all
    select ` + doneColumns + ` from task_done d where d.id = t.id
    offset 0
) s (id, queue, priority, max_retries, on_unknown, expires_at, state, reason, retry_count, due_at, result, error_code,
    sent_at, reported_at, claim_id, app_id, ended, marks_sending, sending_at)
where c.id >= $1 and c.id < $2
    and ($3::text is null or t.phone_number = $3)
    and ($4::integer is null or s.state = $4)
    and ($5::integer is null or s.reason = $5)
    and ($6::text is null or t.source = $6)
    and ($7::text is null or t.queue = $7)
    and ($8::bigint is null or t.caller_id = $8)
    and (cardinality($10::text[]) = 0 or t.queue = any($10))
`

const listEnd = `order by c.id desc limit $9`

const bodyOfDriver = `cross join lateral (select * from tasks where tasks.id = c.id offset 0) t `

// The lists by what drives them: the bodies, by phone number where one is
// given; the live rows of one state; the failed results.
const (
	listBodiesSQL = listColumns + `from tasks c cross join lateral (select c.*) t ` + listTail +
		`and ($3::text is null or c.phone_number = $3) ` + listEnd
	listLiveSQL   = listColumns + `from task_live c ` + bodyOfDriver + listTail + `and c.state = $4 ` + listEnd
	listFailedSQL = listColumns + `from task_done c ` + bodyOfDriver + listTail + `and c.status = 3 ` + listEnd
)

// The edges: the lowest id that a page may look at.
const (
	edgeOfBodiesSQL = `
select id from tasks where id >= $1 and id < $2 and ($3::text is null or phone_number = $3) order by id desc offset $4 limit 1`
	edgeOfLiveSQL   = `select id from task_live where id >= $1 and id < $2 and state = $3 order by id desc offset $4 limit 1`
	edgeOfFailedSQL = `select id from task_done where id >= $1 and id < $2 and status = 3 order by id desc offset $3 limit 1`
)

// walkIndexSQL has the planner walk an index in its order even where tables
// were never analyzed: a sort would read all that it sorts.
const walkIndexSQL = `
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)`

// List lists tasks that pass a filter, newest first. A page looks through
// at most scanRows tasks of the index that fits the filter best, so it may be
// shorter than its limit and yet not the last.
func (st *Store) List(ctx context.Context, f Filter) (page Page, err error) {
	err = pgx.BeginTxFunc(ctx, st.db.Read, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, walkIndexSQL); err != nil {
			return err
		}
		page, err = st.listSpellings(ctx, tx, f)
		return err
	})
	return page, store.Wrap("list tasks", err)
}

// listSpellings joins the lists of each spelling of a phone number. Its page ends
// where the first of them does.
func (st *Store) listSpellings(ctx context.Context, tx pgx.Tx, f Filter) (page Page, err error) {
	for _, f.Phone = range st.phones.Spellings(f.Phone) {
		found, err := listTasks(ctx, tx, f)
		if err != nil {
			return Page{}, err
		}
		page.Tasks = append(page.Tasks, found.Tasks...)
		if found.Next.Compare(page.Next) > 0 {
			page.Next = found.Next
		}
	}
	page.Tasks = slices.DeleteFunc(page.Tasks, func(d Detail) bool { return d.ID.Compare(page.Next) < 0 })
	slices.SortFunc(page.Tasks, func(a, b Detail) int { return b.ID.Compare(a.ID) })
	if len(page.Tasks) > f.Limit {
		page.Tasks = page.Tasks[:f.Limit]
		page.Next = page.Tasks[f.Limit-1].ID
	}
	return page, nil
}

func listTasks(ctx context.Context, tx pgx.Tx, f Filter) (Page, error) {
	low, high := f.bounds()
	list, edge, edgeArgs := f.driver(low, high)
	var next task.ID
	err := tx.QueryRow(ctx, edge, edgeArgs...).Scan(&next)
	switch {
	case err == nil && len(f.Queues) > 0:
		// The id may be that of a task of another queue, which must not be shown.
		low = task.IDFloor(next.Time())
		next = low
	case err == nil:
		low = next
	case !errors.Is(err, pgx.ErrNoRows):
		return Page{}, err
	}
	rows, err := tx.Query(ctx, list, f.args(low, high)...)
	if err != nil {
		return Page{}, err
	}
	found, more, err := store.CollectPage(ctx, rows, f.Limit, scanDetail)
	if more {
		next = found[len(found)-1].ID
	}
	return Page{Tasks: found, Next: next}, err
}

// bounds are the ids between which the filter looks, the upper excluded.
func (f *Filter) bounds() (low, high task.ID) {
	for i := range high {
		high[i] = 0xff
	}
	if !f.From.IsZero() {
		low = task.IDFloor(f.From)
	}
	if !f.To.IsZero() {
		high = task.IDFloor(f.To)
	}
	if !f.After.IsZero() && f.After.Compare(high) < 0 {
		high = f.After
	}
	return low, high
}

// driver picks the index to walk: the one that leaves the least to look
// through.
func (f *Filter) driver(low, high task.ID) (list, edge string, edgeArgs []any) {
	switch {
	case f.Phone == "" && (f.Reason != task.NoReason || f.State != nil && *f.State == task.Failed):
		return listFailedSQL, edgeOfFailedSQL, []any{low, high, scanRows - 1}
	case f.Phone == "" && f.State != nil && !f.State.Final():
		return listLiveSQL, edgeOfLiveSQL, []any{low, high, int32(*f.State), scanRows - 1}
	default:
		return listBodiesSQL, edgeOfBodiesSQL, []any{low, high, store.OrNull(f.Phone), scanRows - 1}
	}
}

// args are the parameters of a list.
func (f *Filter) args(low, high task.ID) []any {
	return []any{low, high, store.OrNull(f.Phone), f.State, store.OrNull(f.Reason), store.OrNull(f.Source), store.OrNull(f.Queue), f.CallerID, f.Limit + 1, store.NotNull(f.Queues)}
}

// Event is one line of a task's history.
type Event struct {
	At         time.Time
	Event      EventKind
	AppID      string
	ClaimID    int64
	CallerID   *int64
	Status     int    // what a sender reported: 2, 3, or 0 for neither
	StatusCode int    // the HTTP status that a submission was answered with
	Verdict    string // what became of a report, or of a task that fell due
	ErrorCode  string
	Message    string
	RequestID  string
	SourceIP   string
	UserAgent  string
}

// EventKind says which log an event is from.
type EventKind string

// The kinds of events.
const (
	EventReceived EventKind = "received" // the submission that made the task
	EventReplayed EventKind = "replayed" // the same submission again
	EventClaimed  EventKind = "claimed"  // handed to a sender app
	EventReport   EventKind = "report"   // a sender app's report
	EventVerdict  EventKind = "verdict"  // a lease or time ran out, or somebody decided by hand
)

// timelineSQL reads the newest lines of each log before a place, in turns, so that a
// flood of one kind hides none of the others: n counts the lines of a log.
const timelineSQL = `
select log, id, n, at, event, coalesce(app_id, ''), coalesce(claim_id, 0), caller_id, coalesce(status, 0), coalesce(status_code, 0),
    coalesce(verdict, ''), coalesce(error_code, ''), coalesce(message, ''), coalesce(request_id, ''), coalesce(source_ip, ''),
    coalesce(user_agent, '')
from ((
    select 1 as log, id, row_number() over (order by id desc) as n, created_at as at, case when response_data ? 'replayed' then 'replayed' else 'received' end as event,
        null::text as app_id, null::bigint as claim_id, caller_id, null::integer as status, status_code,
        null::text as verdict, null::text as error_code, null::text as message, request_id, source_ip, user_agent
    from receive_logs where task_id = $1 and ($3::bigint = 0 or id < $3) order by id desc limit $2
) union all (
    select 2, id, row_number() over (order by id desc), created_at, 'claimed', app_id, claim_id, null, null, null, null, null, null, request_data ->> 'request_id', null, null
    from send_logs where task_id = $1 and ($4::bigint = 0 or id < $4) order by id desc limit $2
) union all (
    select 3, id, row_number() over (order by id desc), created_at, case when request_data is null then 'verdict' else 'report' end, app_id, claim_id, caller_id, status, null,
        verdict, error_code, error_message, null, null, null
    from report_logs where task_id = $1 and ($5::bigint = 0 or id < $5) order by id desc limit $2
)) e
order by n, log`

// TimelinePlace is the id of the oldest line that a page of Timeline has, or pages
// before it had, of receive_logs, send_logs and report_logs; 0 = none.
type TimelinePlace [3]int64

// timelineLine is a row of timelineSQL.
type timelineLine struct {
	Log int32
	ID  int64
	N   int64
	Event
}

// Timeline gives a page of a task's history, in time order: at most the limit newest
// lines of each log, as far as logs are kept. The next page has older ones; next is
// zero on the last.
func (st *Store) Timeline(ctx context.Context, id task.ID, before TimelinePlace, limit int) (events []Event, next TimelinePlace, err error) {
	rows, err := st.db.Read.Query(ctx, timelineSQL, id, limit+1, before[0], before[1], before[2])
	if err != nil {
		return nil, next, store.Wrap("timeline", err)
	}
	lines, more, err := store.CollectPage(ctx, rows, len(before)*(limit+1), pgx.RowToStructByPos[timelineLine])
	if err != nil {
		return nil, next, store.Wrap("timeline", err)
	}
	place := before
	page := lines[:0]
	for _, l := range lines {
		if l.N > int64(limit) {
			more = true
			continue
		}
		page, place[l.Log-1] = append(page, l), l.ID
	}
	slices.SortFunc(page, func(a, b timelineLine) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Log, b.Log), cmp.Compare(a.ID, b.ID))
	})
	if more {
		next = place
	}
	return store.Column(page, func(l timelineLine) Event { return l.Event }), next, nil
}
