package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// firstCallsSQL finds the call that first used a key or an id, with the present state of its task. The state is
// null if the task is in neither task_live nor task_done.
const firstCallsSQL = `
select k.key, k.fingerprint, k.id, t.content, coalesce(d.status + 2, l.state)
from submission_keys k
join tasks t on t.id = k.id
left join task_live l on l.id = k.id
left join task_done d on d.id = k.id
where k.key = any($1::uuid[])
union all
select null, null, t.id, t.content, coalesce(d.status + 2, l.state)
from tasks t
left join task_live l on l.id = t.id
left join task_done d on d.id = t.id
where t.id = any($2::uuid[])`

// archivedCallsSQL is firstCallsSQL for archived tasks. A task that an operator has deleted from the archive has no state.
const archivedCallsSQL = `
select k.key, k.fingerprint, k.id, coalesce(a.content, ''), a.status + 2
from submission_keys k left join archived_tasks a on a.id = k.id
where k.key = any($1::uuid[]) and not exists (select from tasks where id = k.id)
union all
select null, null, a.id, a.content, a.status + 2
from archived_tasks a
where a.id = any($2::uuid[])`

type firstCall struct {
	id          task.ID
	fingerprint task.Hash
	content     string
	state       *task.State // nil = the task was deleted from the archive, or has lost its row (see check)
	archived    bool
}

// check returns an error if rows of the call or of its task are missing. Only an attacker who controls a function can
// have deleted them.
func (c firstCall) check(found bool) error {
	switch {
	case !found:
		return errors.New("a submission was neither inserted nor found")
	case c.state == nil && !c.archived:
		return fmt.Errorf("task %s has no state: its row of task_live or task_done was deleted", c.id)
	}
	return nil
}

// refusal returns why a call with the key of c and this fingerprint gets no task. It is nil if the call is a replay of
// c.
func (c firstCall) refusal(fingerprint task.Hash) *task.Error {
	switch {
	case c.fingerprint != fingerprint:
		return task.Refuse(task.CodeKeyReused, "this idempotency key was used with another request; use a new key for a new message")
	case c.state == nil:
		return task.Refuse(task.CodeKeyReused, "this idempotency key was used for a task that was deleted from the archive; use a new key for a new message")
	}
	return nil
}

type knownCalls struct {
	byKey map[task.Hash]firstCall
	byID  map[task.ID]firstCall
}

// of returns the first call with the key of s. If s has no key, it returns the call with the id of s.
func (k knownCalls) of(s *Submission) (firstCall, bool) {
	if s.Key != nil {
		first, ok := k.byKey[*s.Key]
		return first, ok
	}
	first, ok := k.byID[s.ID]
	return first, ok
}

func (st *Store) firstCalls(ctx context.Context, ids []task.ID, keys []task.Hash) (knownCalls, error) {
	known := knownCalls{byKey: map[task.Hash]firstCall{}, byID: map[task.ID]firstCall{}}
	if err := known.query(ctx, st.db.Hot, firstCallsSQL, false, keys, ids); err != nil {
		return known, err
	}
	keys = slices.DeleteFunc(keys, func(k task.Hash) bool { _, found := known.byKey[k]; return found })
	ids = slices.DeleteFunc(ids, func(id task.ID) bool { _, found := known.byID[id]; return found })
	if len(keys)+len(ids) == 0 {
		return known, nil
	}
	return known, known.query(ctx, st.db.Hot, archivedCallsSQL, true, keys, ids)
}

func (k knownCalls) query(ctx context.Context, q store.Querier, sql string, archived bool, keys []task.Hash, ids []task.ID) error {
	var key, fingerprint *task.Hash
	first := firstCall{archived: archived}
	return store.QueryEach(ctx, q, sql, []any{keys, ids}, []any{&key, &fingerprint, &first.id, &first.content, &first.state}, func() {
		if key == nil {
			k.byID[first.id] = first
			return
		}
		first.fingerprint = *fingerprint
		k.byKey[*key] = first
	})
}
