package tasks

import (
	"context"
	"fmt"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

// countTasksSQL counts the tasks of every account (see Caller.Account) that are not final. task_live has no
// index by caller, which each submission, claim and report would have to keep: its
// pages are read instead, and of a table larger than $1 bytes so many of them at
// random. Twice the standard error of a sample, at about 64 rows a page, is
// subtracted, so that a caller below its quota is hardly ever refused.
const countTasksSQL = `
with s as materialized (
    select least(1, $1::float8 / greatest(pg_relation_size('task_live'), 1)) as part
)
select coalesce(c.account_id, t.caller_id), greatest((count(*) - case when (select part from s) < 1 then 2 * sqrt(64 * count(*)) else 0 end) / (select part from s), 0)::bigint
from task_live t tablesample system ((select 100 * part from s)) left join callers c on c.id = t.caller_id
group by 1`

// taskSample is how many bytes of task_live one count reads, about 250,000 rows.
const taskSample = 32 << 20

// countTasks counts the tasks of all callers that have any, by a sample of so many
// bytes.
func (st *Store) countTasks(ctx context.Context, sample int) (map[int64]quota.Waiting, error) {
	of := map[int64]quota.Waiting{}
	var caller int64
	var w quota.Waiting
	err := store.QueryEach(ctx, st.db.Hot, countTasksSQL, []any{store.Unprepared, sample}, []any{&caller, &w.Items}, func() {
		of[caller] = w
	})
	return of, store.Wrap("count waiting tasks", err)
}

// SubmitWithinQuota is Submit for a caller that may have a limited number of tasks
// waiting: not final, whatever their queue and state. The rows beyond that are refused
// with task.CodeQuota, each by itself; a replay gets its response all the same.
//
// No submission waits for a count (see quotas), and one process spends at most a
// twentieth of the time on counting. So a caller may exceed its quota by what a process
// takes in before its first count, and by what the other processes take in between two
// counts. Where a count is a sample it errs in favour of the caller.
func (st *Store) SubmitWithinQuota(caller callers.Caller, rows []*Submission) (outs []Submitted, errs []error) {
	var valid []*Submission
	for _, s := range rows {
		if s.Refused == nil {
			valid = append(valid, s)
		}
	}
	st.WithinQuota(caller, len(valid), func(fit int, refusal *task.Error) (saved int) {
		for _, s := range valid[fit:] {
			s.Refused = refusal
		}
		outs, errs = st.Submit(rows)
		for i, out := range outs {
			if errs[i] == nil && out.Refused == nil && !out.Replayed {
				saved++
			}
		}
		return saved
	})
	return outs, errs
}

// WithinQuota calls submit with the number of n new tasks that the caller has room for,
// and with what refuses the others. submit returns how many tasks were saved; those that
// may have been, on an error, are in the next count.
func (st *Store) WithinQuota(caller callers.Caller, n int, submit func(fit int, refusal *task.Error) (saved int)) {
	q := st.taskQuotas
	limit := q.ByDefault
	if caller.MaxWaitingTasks != nil {
		limit.Items = *caller.MaxWaitingTasks
	}
	if limit.Items == 0 || caller.ID == 0 { // 0 is the operator's own pair
		submit(n, nil)
		return
	}
	defer q.Refresh(caller.Account(), limit) // at the end: the first call of a process must not share its start with a count
	admission, had := q.Admit(caller.Account(), limit, quota.Waiting{Items: 1}, n)
	defer admission.End()
	fit := admission.Items()
	var refusal *task.Error
	if fit < n {
		refusal = quota.Refuse(quota.RetryAfter, fmt.Sprintf("this caller has %d tasks that are not finished, and may have %d: "+
			"tasks are accepted again when some of these are finished", had.Items+int64(fit), limit.Items))
	}
	saved := submit(fit, refusal)
	q.AddSaved(caller.Account(), quota.Waiting{Items: int64(saved)})
}
