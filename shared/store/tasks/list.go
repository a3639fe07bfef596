package tasks

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Filter selects the tasks of a list: those that match every field that is not zero.
type Filter struct {
	State    *task.State
	Reason   task.Reason // why the task failed
	Phone    string
	Source   string
	Queue    string
	Queues   []string // only tasks of these queues may be listed; empty = all queues
	CallerID *int64
	From     time.Time // created at this time or later
	To       time.Time // created before this time
	After    task.ID   // Page.Next of the previous page; zero = the first page
	Limit    int
}

// Page is one page of a list of tasks, newest first.
type Page struct {
	Tasks []Detail
	Next  task.ID // Filter.After of the next page; zero = this is the last page
}

// scanRows limits the index entries that the query of one page scans (for each spelling of a phone number). A filter
// that matches few tasks gives short or empty pages, but never a long query. For a live state, only the entries of tasks in
// this state count: the query skips the others, about three million in a second.
const scanRows = 10_000

// The SQL of a list is listColumns, a from clause, listTail and listEnd. The from clause has the
// table c, whose index is scanned in order, and the bodies t of the rows of c. Without the lateral
// subqueries, the planner could scan another table first.
const listColumns = `select ` + bodyColumns + `, s.* `

const listTail = `
cross join lateral (
    select ` + liveColumns + ` from task_live l where l.id = t.id
    union all
    select ` + doneColumns + ` from task_done d where d.id = t.id
    offset 0
) s
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

const joinBody = `cross join lateral (select * from tasks where tasks.id = c.id offset 0) t `

// listBodiesSQL lists all tasks, or those with one phone number; listLiveSQL those in one live state; listFailedSQL those
// that failed.
const (
	listBodiesSQL = listColumns + `from tasks c cross join lateral (select c.*) t ` + listTail +
		`and ($3::text is null or c.phone_number = $3) ` + listEnd
	listLiveSQL   = listColumns + `from task_live c ` + joinBody + listTail + `and c.state = $4 ` + listEnd
	listFailedSQL = listColumns + `from task_done c ` + joinBody + listTail + `and c.status = 3 ` + listEnd
)

// The edge of a page is the lowest id that the page may scan.
const (
	edgeOfBodiesSQL = `
select id from tasks where id >= $1 and id < $2 and ($3::text is null or phone_number = $3) order by id desc offset $4 limit 1`
	edgeOfLiveSQL   = `select id from task_live where id >= $1 and id < $2 and state = $3 order by id desc offset $4 limit 1`
	edgeOfFailedSQL = `select id from task_done where id >= $1 and id < $2 and status = 3 order by id desc offset $3 limit 1`
)

// walkIndexSQL makes the planner scan an index in order, even if the tables were never
// analyzed. Otherwise it could choose a sort, which reads every matching row first.
const walkIndexSQL = `
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)`

// List returns a page of the tasks that match a filter, newest first. It scans at most scanRows index
// entries for each spelling of the phone number. So a page with fewer than f.Limit tasks may not be the last.
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

// listSpellings merges the lists of all spellings of a phone number. The merged page ends at the highest Next of
// these lists: below that id, at least one list is incomplete.
func (st *Store) listSpellings(ctx context.Context, tx pgx.Tx, f Filter) (page Page, err error) {
	for _, f.Phone = range st.phones.Spellings(f.Phone) {
		list, err := listTasks(ctx, tx, f)
		if err != nil {
			return Page{}, err
		}
		page.Tasks = append(page.Tasks, list.Tasks...)
		if list.Next.Compare(page.Next) > 0 {
			page.Next = list.Next
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
	list, edge, edgeArgs := f.indexStatements(low, high)
	var next task.ID
	err := tx.QueryRow(ctx, edge, edgeArgs...).Scan(&next)
	switch {
	case err == nil && len(f.Queues) > 0:
		// next may be the id of a task in a queue that is not in f.Queues. Such an id must not be shown.
		low = task.IDFloor(next.Time())
		next = low
	case err == nil:
		low = next
	case !errors.Is(err, pgx.ErrNoRows):
		return Page{}, err
	}
	tasks, more, err := store.QueryPageBy(ctx, tx, f.Limit, store.RowByName[Detail](), list, f.args(low, high)...)
	if more {
		next = tasks[len(tasks)-1].ID
	}
	return Page{Tasks: tasks, Next: next}, err
}

// bounds returns the range of ids that the filter allows: low is in the range, high is not.
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

// indexStatements returns the statements that scan the index with the fewest entries for f: list reads a page, and
// edge, with the parameters edgeArgs, returns the edge of the page.
func (f *Filter) indexStatements(low, high task.ID) (list, edge string, edgeArgs []any) {
	switch {
	case f.Phone == "" && (f.Reason != task.NoReason || f.State != nil && *f.State == task.Failed):
		return listFailedSQL, edgeOfFailedSQL, []any{low, high, scanRows - 1}
	case f.Phone == "" && f.State != nil && !f.State.Final():
		return listLiveSQL, edgeOfLiveSQL, []any{low, high, int32(*f.State), scanRows - 1}
	default:
		return listBodiesSQL, edgeOfBodiesSQL, []any{low, high, store.OrNull(f.Phone), scanRows - 1}
	}
}

// args returns the parameters of a list.
func (f *Filter) args(low, high task.ID) []any {
	return []any{low, high, store.OrNull(f.Phone), f.State, store.OrNull(f.Reason), store.OrNull(f.Source), store.OrNull(f.Queue), f.CallerID, f.Limit + 1, store.NotNull(f.Queues)}
}
