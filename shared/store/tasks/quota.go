package tasks

import (
	"context"
	"fmt"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

// countTasksSQL counts, for each account (see callers.Caller.Account), the tasks that are not final. It scans
// task_live: there is no index by caller, since each submission, claim and report would have to update it. If task_live
// is larger than $1 bytes, the query scans a random sample of about $1 bytes, in whole pages of about 64 rows, and
// estimates the counts from it. It subtracts twice the standard error, so an account below its quota is hardly ever
// refused.
const countTasksSQL = `
with s as materialized (
    select least(1, $1::float8 / greatest(pg_relation_size('task_live'), 1)) as part
)
select coalesce(c.account_id, t.caller_id), greatest((count(*) - case when (select part from s) < 1 then 2 * sqrt(64 * count(*)) else 0 end) / (select part from s), 0)::bigint
from task_live t tablesample system ((select 100 * part from s)) left join callers c on c.id = t.caller_id
group by 1`

// taskSample is how many bytes of task_live one count reads, about 250,000 rows.
const taskSample = 32 << 20

// countTasks counts the tasks of each account that has any. sample is the parameter of countTasksSQL.
func (st *Store) countTasks(ctx context.Context, sample int) (map[int64]quota.Waiting, error) {
	byAccount := map[int64]quota.Waiting{}
	var account int64
	var w quota.Waiting
	err := store.QueryEach(ctx, st.db.Hot, countTasksSQL, []any{store.Unprepared, sample}, []any{&account, &w.Items}, func() {
		byAccount[account] = w
	})
	return byAccount, store.Wrap("count waiting tasks", err)
}

// SubmitWithinQuota is Submit for a caller whose waiting tasks are limited. All tasks of the caller's account that are
// not final are waiting tasks. Only the rows beyond the limit are refused, with task.CodeQuota. A replay is never
// refused for the limit.
//
// A submission waits for a count (see package quota) only before it is refused. So an account may exceed its quota by
// the tasks that a process accepts before its first count, and by the tasks that other processes accept between two
// counts. A count of a sample is too low rather than too high.
func (st *Store) SubmitWithinQuota(ctx context.Context, caller callers.Caller, rows []*Submission) (outs []Submitted, errs []error) {
	var valid []*Submission
	for _, s := range rows {
		if s.Refused == nil {
			valid = append(valid, s)
		}
	}
	st.WithinQuota(ctx, caller, len(valid), func(fit int, refusal *task.Error) (saved int) {
		if fit < len(valid) {
			limited := &callQuota{refusal: refusal}
			limited.left.Store(int64(fit))
			for _, s := range valid {
				s.quota = limited
			}
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

// WithinQuota calls submit for n new tasks. fit is how many of them are within the caller's quota, and refusal is
// the error for the rest. submit returns how many tasks were saved. It need not count a task that was saved despite an
// error: the next count of the database includes it.
func (st *Store) WithinQuota(ctx context.Context, caller callers.Caller, n int, submit func(fit int, refusal *task.Error) (saved int)) {
	q := st.taskQuotas
	limit := q.ByDefault
	if caller.MaxWaitingTasks != nil {
		limit.Items = *caller.MaxWaitingTasks
	}
	if limit.Items == 0 || caller.ID == 0 { // 0 is the built-in admin
		submit(n, nil)
		return
	}
	defer q.Refresh(caller.Account(), limit) // deferred, so that a count does not slow down the first call of a process
	admission, before := q.Admit(ctx, caller.Account(), limit, quota.Waiting{Items: 1}, n)
	defer admission.End()
	fit := admission.Items()
	var refusal *task.Error
	if fit < n {
		refusal = quota.Refuse(quota.RetryAfter, fmt.Sprintf("this caller has %d tasks that are not finished, and may have %d: "+
			"tasks are accepted again when some of these are finished", before.Items+int64(fit), limit.Items))
	}
	saved := submit(fit, refusal)
	q.AddSaved(caller.Account(), quota.Waiting{Items: int64(saved)})
}
