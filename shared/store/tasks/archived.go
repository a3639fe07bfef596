package tasks

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const archivedSQL = `
select ` + archivedColumns + `
from archived_tasks d cross join lateral (select ` + BodyNames + `) t
where d.id = any($1::uuid[])`

func (st *Store) archived(ctx context.Context, ids ...task.ID) ([]Detail, error) {
	return store.QueryRows(ctx, st.db.Hot, store.RowByName[Detail](), archivedSQL, ids)
}

// reportArchived sets and logs the results of reports on archived tasks. Reports never change archived tasks: the
// verdict of a report that would change one is task.Stale.
func (st *Store) reportArchived(ctx context.Context, reports []*Report, out []Reported) {
	var ids []task.ID
	for i, r := range reports {
		if !out[i].Found && out[i].err == nil {
			ids = append(ids, r.TaskID)
		}
	}
	if len(ids) == 0 {
		return
	}
	err := st.db.WithPartitions(ctx, func() error {
		archived, err := st.archived(ctx, ids...)
		if err != nil || len(archived) == 0 {
			return err
		}
		var batch pgx.Batch
		QueueVerdicts(&batch, decideArchived(archived, reports, out))
		return st.db.Hot.SendBatch(ctx, &batch).Close()
	})
	for i := range out {
		if err != nil && (!out[i].Found || out[i].archived) {
			out[i].err = err
		}
	}
}

func decideArchived(archived []Detail, reports []*Report, out []Reported) (logs []VerdictLog) {
	byID := make(map[task.ID]task.Task, len(archived))
	for _, d := range archived {
		byID[d.ID] = d.Task
	}
	for i, r := range reports {
		t, ok := byID[r.TaskID]
		if !ok || !isVisible(t, r.CallerID, r.Queues) {
			continue
		}
		_, verdict := t.Report(r.Report, nil, t.FinishedAt)
		if verdict == task.Applied {
			verdict = task.Stale
		}
		out[i] = Reported{Task: t, Verdict: verdict, Found: true, archived: true}
		logs = append(logs, r.log(t, verdict))
	}
	return logs
}

// decideAnywhere is decide for a task that may be archived. For an archived task, a decision succeeds
// only if it changes nothing.
func (st *Store) decideAnywhere(ctx context.Context, id task.ID, decide decision, extra extraStatements) (task.Task, error) {
	t, err := st.decide(ctx, id, decide, extra)
	if task.CodeOf(err) != task.CodeNotFound {
		return t, err
	}
	archived, archiveErr := st.archived(ctx, id)
	switch {
	case archiveErr != nil:
		return t, archiveErr
	case len(archived) == 0:
		return t, err
	}
	before := archived[0].Task
	after, err := decide(before, before.FinishedAt)
	if err == nil && after != before {
		err = task.Refuse(task.CodeConflict, "the task is archived and cannot be changed; submit a new one")
	}
	return before, err
}
