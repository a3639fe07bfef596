package tasks

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Search has the key and the ids by which to search for tasks. Queues limits all results, but Caller only those of Key.
type Search struct {
	Key     string   // an idempotency key of any caller; "" = none
	ClaimID int64    // of a task's newest claim; 0 = none
	Request string   // the request id of a submission; "" = none
	Caller  *int64   // search for Key only among the keys of this caller; nil = all
	Queues  []string // only tasks of these queues; empty = all
}

const (
	searchCallers = 2000                // a key is searched for only among the keys of this many callers, the newest
	searchTime    = 3 * time.Second     // timeout of findBackwards, whose tables have no index by request or claim, and how long it waits for its turn
	searchLimit   = 20                  // tasks that one query returns
	searchBack    = 31 * 24 * time.Hour // findBackwards searches back at least this far
)

// inQueues returns the condition that the task with this id (an SQL expression) is in one of the queues $3; empty = all
// queues. The SQL itself leaves out tasks of other queues, so that neither the next steps of a search nor its duration
// show whether such a task exists.
func inQueues(id string) string {
	return `($3::text[] = '{}' or exists (select from tasks t where t.id = ` + id + ` and t.queue = any($3)) or exists (select from archived_tasks t where t.id = ` + id + ` and t.queue = any($3)))`
}

// searchKeySQL finds the submissions of a key. The hash of a key includes the id of its caller.
var searchKeySQL = `select k.id from submission_keys k where k.key = any($1::uuid[]) and ` + inQueues("k.id") + ` limit $2`

const searchCallersSQL = `select id from callers where $1::bigint is null or id = $1 order by id desc limit $2`

const searchLiveClaimSQL = `select id from task_live where claim_id = $1 and ($3::text[] = '{}' or queue = any($3)) limit $2`

// findBackwards runs these queries for one time range after the other. Both tables have a BRIN index on the time.
var (
	searchDoneClaimSQL = `select d.id from task_done d where d.claim_id = $1 and d.reported_at >= $4 and d.reported_at < $5 and ` + inQueues("d.id") + ` limit $2`
	searchRequestSQL   = `select r.task_id from receive_logs r where r.request_id = $1 and r.task_id is not null and r.created_at >= $4 and r.created_at < $5 and ` + inQueues("r.task_id") + ` limit $2`
)

// Find returns the ids of the tasks that match Key or ClaimID. If there are none, it returns those that match Request.
// Each query returns at most searchLimit ids. complete is false if searchTime ended before findBackwards did, or if the keys of some
// callers were not searched.
func (st *Store) Find(ctx context.Context, s Search) (found []task.ID, complete bool, err error) {
	complete = true
	if s.Key != "" {
		if found, complete, err = st.findByKey(ctx, s); err != nil {
			return nil, false, store.Wrap("search by key", err)
		}
	}
	if s.ClaimID != 0 {
		live, err := st.findIDs(ctx, searchLiveClaimSQL, s.ClaimID, s.Queues)
		if err != nil {
			return nil, false, store.Wrap("search by claim", err)
		}
		if found = append(found, live...); len(live) == 0 {
			done, all, err := st.findBackwards(ctx, searchDoneClaimSQL, s.ClaimID, s.Queues)
			if err != nil {
				return nil, false, store.Wrap("search by claim", err)
			}
			found, complete = append(found, done...), complete && all
		}
	}
	if s.Request != "" && len(found) == 0 {
		logged, all, err := st.findBackwards(ctx, searchRequestSQL, s.Request, s.Queues)
		if err != nil {
			return nil, false, store.Wrap("search by request", err)
		}
		found, complete = append(found, logged...), complete && all
	}
	return found, complete, nil
}

// findByKey searches for the key with the ids of the newest callers and of the built-in admin, or of s.Caller alone. complete is false
// if it has found nothing and there are more callers.
func (st *Store) findByKey(ctx context.Context, s Search) (found []task.ID, complete bool, err error) {
	callers, err := store.QueryRows(ctx, st.db.Read, pgx.RowTo[int64], searchCallersSQL, s.Caller, searchCallers+1)
	if err != nil {
		return nil, false, err
	}
	all := len(callers) <= searchCallers
	if s.Caller == nil || *s.Caller == 0 {
		callers = append(callers, 0)
	}
	hashes := make([]task.Hash, 0, len(callers))
	for _, caller := range callers {
		hashes = append(hashes, task.KeyHash(caller, "sms", s.Key))
	}
	found, err = st.findIDs(ctx, searchKeySQL, hashes, s.Queues)
	return found, all || len(found) > 0, err
}

// findBackwards runs a query for one time range after the other, from now backwards. Each range is four times as long as
// the range before. findBackwards ends when it has found a task, has searched back to searchBack, or searchTime is over.
func (st *Store) findBackwards(ctx context.Context, sql string, value any, queues []string) (found []task.ID, complete bool, err error) {
	err = st.db.ReadCostly(ctx, searchTime, func() error {
		limited, cancel := context.WithTimeout(ctx, searchTime)
		defer cancel()
		latest := time.Now().Add(time.Minute) // the clock of the database may be ahead
		for length, end := 15*time.Minute, latest; end.After(latest.Add(-searchBack)) && len(found) == 0; length *= 4 {
			begin := end.Add(-length)
			found, err = st.findIDs(limited, sql, value, queues, begin, end)
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				return nil
			}
			if err != nil {
				return err
			}
			end = begin
		}
		complete = true
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // other searches took the time
		return nil, false, nil
	}
	return found, complete, err
}

// findIDs runs a query whose first parameters are the value to search for, the limit and the queues.
func (st *Store) findIDs(ctx context.Context, sql string, value any, queues []string, more ...any) ([]task.ID, error) {
	return store.QueryRows(ctx, st.db.Read, pgx.RowTo[task.ID], sql, append([]any{value, searchLimit, store.NotNull(queues)}, more...)...)
}
