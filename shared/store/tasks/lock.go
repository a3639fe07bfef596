package tasks

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// beginLockSQL returns now(), and limits how long the transaction waits for each lock.
const beginLockSQL = `select now(), set_config('lock_timeout', $1, true)`

// lockLiveSQL locks in id order, so that two transactions never deadlock.
const lockLiveSQL = `select ` + liveColumns + `, now() from task_live l where l.id = any($1::uuid[]) order by l.id for update`

// lockDoneSQL runs after lockLiveSQL. So it also finds tasks that were finished while lockLiveSQL waited.
const lockDoneSQL = `
select ` + doneColumns + `, now()
from task_done d cross join lateral (select * from tasks where tasks.id = d.id offset 0) t
where d.id = any($1::uuid[])
order by d.id
for update of d`

// tasksExistSQL finds the tasks that are live, and the tasks that are done and have a body, which lockDoneSQL
// needs. It reads both tables in one snapshot, so it also finds a task that another transaction is moving
// from one table to the other.
const tasksExistSQL = `
select id from task_live where id = any($1::uuid[])
union all
select d.id from task_done d where d.id = any($1::uuid[]) and exists (select from tasks where tasks.id = d.id offset 0)`

// Locked has the tasks that a transaction has locked, and now() of the transaction.
type Locked struct {
	tasks map[task.ID]task.Task
	exist map[task.ID]bool // tasks that tasksExistSQL found in the last round; some may not be locked
	Now   time.Time
}

// Of returns one locked task. found is false if the task is archived, does not exist, or has lost its
// state. The error is task.CodeServerBusy if the task exists but no round could lock it, because it moved
// between the tables each time.
func (l Locked) Of(id task.ID) (t task.Task, found bool, err error) {
	t, found = l.tasks[id]
	if !found && l.exist[id] {
		err = store.Busy()
	}
	return t, found, err
}

// missing returns the tasks that are not locked.
func (l Locked) missing(ids []task.ID) []task.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id task.ID) bool { _, found := l.tasks[id]; return found })
}

// How long a transaction waits for a locked row. A report that is run alone has already waited once.
const (
	LockTimeout      = "250ms"
	lockTimeoutAlone = "20ms"
)

// lockRounds limits how often Lock searches both tables. A round misses a task if the task is live while
// lockDoneSQL runs, and done when lockLiveSQL runs.
const lockRounds = 5

// Lock begins a transaction and locks the tasks. If all tasks are live, Lock needs one round trip. Otherwise it searches
// both tables for the missing tasks. If a task moved between the tables during the search, Lock searches again.
func Lock(ctx context.Context, conn *pgx.Conn, ids []task.ID, timeout string) (Locked, error) {
	locked := Locked{tasks: make(map[task.ID]task.Task, len(ids))}
	collect := func(rows pgx.Rows) error {
		tasks, err := pgx.CollectRows(rows, store.RowByName[lockedTask]())
		for _, t := range tasks {
			locked.tasks[t.ID] = t.Task
		}
		return err
	}
	var batch pgx.Batch
	batch.Queue("begin")
	batch.Queue(beginLockSQL, timeout).QueryRow(func(row pgx.Row) error { return row.Scan(&locked.Now, nil) })
	batch.Queue(lockLiveSQL, ids).Query(collect)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return locked, err
	}
	missing := locked.missing(ids)
	for round := 0; round < lockRounds && len(missing) > 0; round++ {
		locked.exist = map[task.ID]bool{}
		var batch pgx.Batch
		batch.Queue(lockDoneSQL, missing).Query(collect)
		batch.Queue(lockLiveSQL, missing).Query(collect)
		batch.Queue(tasksExistSQL, missing).Query(store.CollectSet(locked.exist))
		if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
			return locked, err
		}
		missing = locked.missing(slices.Collect(maps.Keys(locked.exist)))
	}
	return locked, nil
}
