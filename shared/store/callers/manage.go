package callers

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

const insertCallerSQL = `
insert into callers (name, token_hash, roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks, best_priority, made_by, account_id)
values ($1, $2, $3, $4, $5, $6, nullif($7::bigint, 0), nullif($8::bigint, 0), nullif($9::bigint, 0), coalesce($10::smallint, 0), $11, $12) returning ` + callerColumns

// countMadeSQL counts the callers of an account. Callers that were revoked within the last day count too:
// otherwise an operator could create and revoke any number.
const countMadeSQL = `
select count(*) from callers where account_id = $1 and (revoked_at is null or revoked_at > now() - interval '1 day')`

// Add creates a caller. tokenHash is the SHA-256 of its token. A caller that a limited operator
// makes belongs to the operator's account, which may have stores.Config.OperatorCallers callers. The
// error is task.CodeConflict if a caller has the name, revoked or not, or task.CodeForbidden if the
// operator may not grant so much, or has too many callers.
func (st *Store) Add(ctx context.Context, name string, tokenHash []byte, grants Grants, by store.Operator) (c StoredCaller, err error) {
	if err := grants.check(); err != nil {
		return c, err
	}
	err = st.auditedWithLock(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		limited, err := limitedOperator(ctx, tx, by)
		if err != nil {
			return store.AuditEntry{}, err
		}
		if err := limited.checkGrant(name, grants); err != nil {
			return store.AuditEntry{}, err
		}
		var madeBy, account *int64
		if limited != nil {
			madeBy, account = &limited.ID, new(limited.account())
			var made int
			if err := tx.QueryRow(ctx, countMadeSQL, account).Scan(&made); err != nil {
				return store.AuditEntry{}, err
			}
			if most := st.operatorCallers; made >= most {
				return store.AuditEntry{}, task.Refuse(task.CodeForbidden, fmt.Sprintf("this operator and its callers have made %d callers, counting those revoked within the last day, "+
					"and may make %d: revoke some and wait a day, or have an admin who is not limited to queues make the caller", made, most))
			}
		}
		c, err = store.QueryOne[StoredCaller](ctx, tx, "caller", insertCallerSQL, name, tokenHash,
			store.NotNull(grants.Roles), store.NotNull(grants.Queues), store.NotNull(grants.BusinessTypes), store.NotNull(grants.Receives), grants.MaxWaitingMessages, grants.MaxWaitingBytes,
			grants.MaxWaitingTasks, grants.BestPriority, madeBy, account)
		return store.AuditEntry{Action: "caller.create", Subject: c.subject(), After: c.json()}, err
	})
	if store.Violates(err, "callers_name_key") {
		err = task.Refuse(task.CodeConflict, "this name is taken; a revoked caller keeps its name")
	}
	return c, store.Wrap("add caller", err)
}

// lockCallersSQL lets one change of callers run at a time: a limited operator must not make another
// caller while its own revocation, or the reduction of its grants, is under way. Only the role of the function admin
// may take this lock. An advisory lock would not do: any role could take it and so prevent a revocation.
const lockCallersSQL = `lock table callers in share row exclusive mode`

// auditedWithLock is AuditedAsAdmin with the lock of lockCallersSQL.
func (st *Store) auditedWithLock(ctx context.Context, by store.Operator, change func(tx pgx.Tx) (store.AuditEntry, error)) error {
	return st.db.AuditedAsAdmin(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		if _, err := tx.Exec(ctx, lockCallersSQL); err != nil {
			return store.AuditEntry{}, err
		}
		return change(tx)
	})
}

const updateCallerSQL = `
update callers set roles = $2, queues = $3, business_types = $4, receives = $5,
    max_waiting_messages = nullif($6::bigint, 0), max_waiting_bytes = nullif($7::bigint, 0),
    max_waiting_tasks = nullif($8::bigint, 0), best_priority = $9
where id = $1 returning ` + callerColumns

// Update changes the grants of a caller. The callers that this caller made, directly or through others, lose what
// exceeds the new grants. A dependent that would lose all its roles, queues or business types is revoked instead: an
// empty list of queues or business types would mean all. dependents has the callers that were reduced or revoked. The
// error is task.CodeNotFound if there is no such caller or the operator does not manage it, task.CodeConflict if the
// caller is revoked, or task.CodeForbidden if the operator may not grant so much, if a limited operator changes itself,
// or if another limited operator made the caller (see StoredCaller.mustOwn).
func (st *Store) Update(ctx context.Context, id int64, grants Grants, by store.Operator) (c StoredCaller, dependents []StoredCaller, err error) {
	c, err = st.changeCaller(ctx, id, "caller.update", by, func(tx pgx.Tx, c StoredCaller, limited *StoredCaller) (StoredCaller, error) {
		grants = grants.filledFrom(c.Grants)
		if err := grants.check(); err != nil {
			return c, err
		}
		if limited != nil && id == by.CallerID {
			return c, task.Refuse(task.CodeForbidden, "an admin with queues may not change its own permissions")
		}
		if err := limited.checkGrant(c.Name, grants); err != nil {
			return c, err
		}
		if grants.equal(c.Grants) {
			return c, nil
		}
		if len(c.exceededBy(grants)) > 0 {
			if err := limited.adopt(ctx, tx, c); err != nil {
				return c, err
			}
		}
		after, err := updateCaller(ctx, tx, id, grants)
		if err == nil {
			dependents, err = narrowMade(ctx, tx, after, by)
		}
		return after, err
	})
	return c, dependents, err
}

func updateCaller(ctx context.Context, tx pgx.Tx, id int64, grants Grants) (StoredCaller, error) {
	return store.QueryOne[StoredCaller](ctx, tx, "caller", updateCallerSQL, id, store.NotNull(grants.Roles), store.NotNull(grants.Queues), store.NotNull(grants.BusinessTypes), store.NotNull(grants.Receives),
		grants.MaxWaitingMessages, grants.MaxWaitingBytes, grants.MaxWaitingTasks, grants.BestPriority)
}

const rotateCallerSQL = `
update callers set token_hash = $2, rotated_at = now() where id = $1 returning ` + callerColumns

// RotateToken replaces a caller's token. tokenHash is the SHA-256 of the new token. The errors are
// those of Update, but a limited operator may rotate its own token.
func (st *Store) RotateToken(ctx context.Context, id int64, tokenHash []byte, by store.Operator) (StoredCaller, error) {
	return st.changeCaller(ctx, id, "caller.rotate", by, func(tx pgx.Tx, c StoredCaller, limited *StoredCaller) (StoredCaller, error) {
		if err := limited.adopt(ctx, tx, c); err != nil {
			return c, err
		}
		return store.QueryOne[StoredCaller](ctx, tx, "caller", rotateCallerSQL, id, tokenHash)
	})
}

// changeCaller locks a caller that is not revoked and that the operator may change, and calls change. limited is the row of
// the operator if it is limited, otherwise nil.
func (st *Store) changeCaller(ctx context.Context, id int64, action string, by store.Operator,
	change func(tx pgx.Tx, c StoredCaller, limited *StoredCaller) (after StoredCaller, err error)) (c StoredCaller, err error) {
	err = st.auditedWithLock(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		before, limited, err := lockCaller(ctx, tx, id, by)
		if err != nil {
			return store.AuditEntry{}, err
		}
		if before.RevokedAt != nil {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, "this caller is revoked; create another one")
		}
		if err := limited.mustOwn(ctx, tx, before); err != nil {
			return store.AuditEntry{}, err
		}
		c, err = change(tx, before, limited)
		return store.AuditEntry{Action: action, Subject: c.subject(), Before: before.json(), After: c.json()}, err
	})
	return c, store.Wrap(action, err)
}

const revokeCallerSQL = `
update callers set revoked_at = now() where id = $1 returning ` + callerColumns

// disableEndpointsSQL disables the endpoints of a revoked caller, so that everybody sees that no events
// are posted there.
const disableEndpointsSQL = `
update webhook_endpoints set enabled = false, disabled_reason = 'by_hand', disabled_at = now()
where caller_id = $1 and url is not null and enabled`

// endpointsTimeout is how long a revocation waits for a locked endpoint. If the endpoint stays locked, all endpoints of
// the caller stay enabled, but deliver posts nothing to them, since their caller is revoked.
const endpointsTimeout = "100ms"

func revokeCaller(ctx context.Context, tx pgx.Tx, id int64) (StoredCaller, error) {
	c, err := store.QueryOne[StoredCaller](ctx, tx, "caller", revokeCallerSQL, id)
	if err != nil {
		return c, err
	}
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(store.SetLockTimeoutSQL, endpointsTimeout)
		batch.Queue(disableEndpointsSQL, id)
		return tx.SendBatch(ctx, &batch).Close()
	})
	if store.SQLState(err) == store.CodeLockTimeout {
		err = nil
	}
	return c, err
}

// lockMadeSQL locks and returns the callers that a caller made, directly or through others, and that are not revoked.
const lockMadeSQL = `
with recursive made (id) as (
    select id from callers where made_by = $1
    union
    select c.id from callers c join made on c.made_by = made.id
)
select ` + callerColumns + ` from callers where id in (select id from made) and revoked_at is null order by id for no key update`

// changeMade calls change for each caller of lockMadeSQL. It returns the callers that were changed, and writes an audit entry
// for each of these.
func changeMade(ctx context.Context, tx pgx.Tx, maker int64, by store.Operator, change func(StoredCaller) (after StoredCaller, action string, err error)) (changed []StoredCaller, err error) {
	made, err := store.QueryRows(ctx, tx, pgx.RowToStructByPos[StoredCaller], lockMadeSQL, maker)
	if err != nil {
		return nil, err
	}
	var audit pgx.Batch
	for _, before := range made {
		after, action, err := change(before)
		if err != nil {
			return nil, err
		}
		if after.json() != before.json() {
			by.QueueAudit(&audit, action, after.subject(), before.json(), after.json())
			changed = append(changed, after)
		}
	}
	return changed, tx.SendBatch(ctx, &audit).Close()
}

// narrowMade reduces the grants of the callers that maker made, directly or through others, to the grants of maker. It
// does nothing if maker is an admin without queues, who has no limits.
func narrowMade(ctx context.Context, tx pgx.Tx, maker StoredCaller, by store.Operator) ([]StoredCaller, error) {
	if slices.Contains(maker.Roles, "admin") && len(maker.Queues) == 0 {
		return nil, nil
	}
	return changeMade(ctx, tx, maker.ID, by, func(c StoredCaller) (StoredCaller, string, error) {
		grants, ok := c.narrowedTo(maker.Grants)
		var err error
		if !ok {
			c, err = revokeCaller(ctx, tx, c.ID)
			return c, "caller.revoke", err
		}
		if !grants.equal(c.Grants) {
			c, err = updateCaller(ctx, tx, c.ID, grants)
		}
		return c, "caller.update", err
	})
}

// Revoke revokes a caller permanently, and the callers that this caller made, directly or through others. dependents has the
// callers that were revoked with it. Revoking a caller again changes nothing. The error is task.CodeNotFound if there is no
// such caller, or if the operator does not manage the caller.
func (st *Store) Revoke(ctx context.Context, id int64, by store.Operator) (c StoredCaller, dependents []StoredCaller, err error) {
	err = st.auditedWithLock(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		before, _, err := lockCaller(ctx, tx, id, by)
		if err != nil || before.RevokedAt != nil {
			c = before
			return store.AuditEntry{}, err
		}
		if c, err = revokeCaller(ctx, tx, id); err == nil {
			dependents, err = changeMade(ctx, tx, id, by, func(made StoredCaller) (StoredCaller, string, error) {
				after, err := revokeCaller(ctx, tx, made.ID)
				return after, "caller.revoke", err
			})
		}
		return store.AuditEntry{Action: "caller.revoke", Subject: c.subject(), Before: before.json(), After: c.json()}, err
	})
	return c, dependents, store.Wrap("revoke caller", err)
}

// ByID returns a caller, revoked or not; task.CodeNotFound if there is none.
func (st *Store) ByID(ctx context.Context, id int64) (StoredCaller, error) {
	c, err := store.QueryOne[StoredCaller](ctx, st.db.Read, "caller", callerSQL, id)
	return c, store.Wrap("caller", err)
}

const namedSQL = `select ` + callerColumns + ` from callers where id = any($1::bigint[]) or name = $2 order by id limit $3`

// Named returns the callers with one of the ids or with the name, revoked or not. With name "" it finds callers only by
// the ids.
func (st *Store) Named(ctx context.Context, ids []int64, name string) ([]StoredCaller, error) {
	callers, _, err := store.QueryPage[StoredCaller](ctx, st.db.Read, len(ids)+1, namedSQL, ids, name)
	return callers, store.Wrap("names of callers", err)
}

const callersSQL = `
select ` + callerColumns + ` from callers
where id > $1 and ($2::text is null or name::text = $2::text or starts_with(name::text, $2::text || '.'))
order by id limit $3`

// List lists the callers by id, revoked or not. after is the last id of the previous page; 0 = the first
// page. limited is the operator if it is limited, otherwise nil. The statement itself leaves out the callers that the operator
// may not name, except the operator, so that the cursor of a page never shows the id of such a caller. The callers of a page
// may still have too many grants: check each with Manages.
func (st *Store) List(ctx context.Context, limited *StoredCaller, after int64, limit int) (page []StoredCaller, more bool, err error) {
	var name *string
	if limited != nil {
		name = &limited.Name
	}
	page, more, err = store.QueryPage[StoredCaller](ctx, st.db.Read, limit, callersSQL, after, name)
	return page, more, store.Wrap("callers", err)
}
