package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Grants are what a caller may do. In a change of a caller, nil leaves a value as it is.
type Grants struct {
	Roles         []string
	Queues        []string // empty = all
	BusinessTypes []string // of subscribe messages; empty = all
	Receives      []string // patterns of the subjects whose messages it may confirm; empty = none

	MaxWaitingMessages *int64 // messages that may be waiting; nil or 0 = what the settings say
	MaxWaitingBytes    *int64 // bytes of these; likewise
	MaxWaitingTasks    *int64 // tasks that may be not final; likewise

	BestPriority *int64 // the smallest priority that it may give to a task, 0 to task.DefaultPriority; nil = 0 in a new caller
}

// StoredCaller is a row of callers without what proves who calls.
type StoredCaller struct {
	ID   int64
	Name string
	Grants
	CreatedAt time.Time
	RotatedAt *time.Time // when the token was last replaced; nil = never
	RevokedAt *time.Time // nil = may call
}

func (c StoredCaller) subject() string { return fmt.Sprintf("caller/%d", c.ID) }

func (c StoredCaller) json() string {
	return mustJSON(map[string]any{
		"name": c.Name, "roles": c.Roles, "queues": c.Queues, "business_types": c.BusinessTypes,
		"receives":             c.Receives,
		"max_waiting_messages": c.MaxWaitingMessages, "max_waiting_bytes": c.MaxWaitingBytes, "max_waiting_tasks": c.MaxWaitingTasks,
		"best_priority": c.BestPriority, "rotated_at": c.RotatedAt, "revoked_at": c.RevokedAt,
	})
}

const callerColumns = `id, name, roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks, best_priority, created_at, rotated_at, revoked_at`

const insertCallerSQL = `
insert into callers (name, token_hash, roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks, best_priority)
values ($1, $2, $3, $4, $5, $6, nullif($7::bigint, 0), nullif($8::bigint, 0), nullif($9::bigint, 0), coalesce($10::smallint, 0)) returning ` + callerColumns

// AddCaller lets a new caller in. tokenHash is the SHA-256 of its token, 32
// bytes. task.CodeConflict when the name was ever given.
func (db *DB) AddCaller(ctx context.Context, name string, tokenHash []byte, may Grants, by Operator) (c StoredCaller, err error) {
	if err := may.check(); err != nil {
		return c, err
	}
	err = db.asAdmin(ctx, by, func(tx pgx.Tx) (auditEntry, error) {
		limits, err := limitsOf(ctx, tx, by)
		if err != nil {
			return auditEntry{}, err
		}
		if err := limits.mayGrant(name, may); err != nil {
			return auditEntry{}, err
		}
		c, err = rowOf[StoredCaller](ctx, tx, "caller", insertCallerSQL, name, tokenHash,
			notNull(may.Roles), notNull(may.Queues), notNull(may.BusinessTypes), notNull(may.Receives), may.MaxWaitingMessages, may.MaxWaitingBytes,
			may.MaxWaitingTasks, may.BestPriority)
		return auditEntry{"caller.create", c.subject(), "", c.json()}, err
	})
	if violates(err, "callers_name_key") {
		err = task.Refuse(task.CodeConflict, "this name is taken; a revoked caller keeps its name")
	}
	return c, failed("add caller", err)
}

const lockCallerSQL = `select ` + callerColumns + ` from callers where id = $1 for update`

const updateCallerSQL = `
update callers set roles = $2, queues = $3, business_types = $4, receives = $5,
    max_waiting_messages = nullif($6::bigint, 0), max_waiting_bytes = nullif($7::bigint, 0),
    max_waiting_tasks = nullif($8::bigint, 0), best_priority = $9
where id = $1 returning ` + callerColumns

// UpdateCaller changes what a caller may do.
// task.CodeNotFound when there is no such caller, task.CodeConflict when it is
// revoked.
func (db *DB) UpdateCaller(ctx context.Context, id int64, may Grants, by Operator) (StoredCaller, error) {
	return db.changeCaller(ctx, id, "caller.update", by, func(tx pgx.Tx, c StoredCaller, limits *StoredCaller) (StoredCaller, error) {
		may = may.over(c.Grants)
		if err := may.check(); err != nil {
			return c, err
		}
		if limits != nil && id == by.CallerID {
			return c, task.Refuse(task.CodeForbidden, "an admin with queues does not change what it may do itself")
		}
		if err := limits.mayGrant(c.Name, may); err != nil {
			return c, err
		}
		if may.equal(c.Grants) {
			return c, nil
		}
		return rowOf[StoredCaller](ctx, tx, "caller", updateCallerSQL, id, may.Roles, may.Queues, may.BusinessTypes, may.Receives,
			may.MaxWaitingMessages, may.MaxWaitingBytes, may.MaxWaitingTasks, may.BestPriority)
	})
}

// over completes a change with what was before.
func (g Grants) over(before Grants) Grants {
	for list, old := range map[*[]string][]string{
		&g.Roles: before.Roles, &g.Queues: before.Queues, &g.BusinessTypes: before.BusinessTypes, &g.Receives: before.Receives,
	} {
		if *list == nil {
			*list = old
		}
	}
	g.MaxWaitingMessages = cmp.Or(g.MaxWaitingMessages, before.MaxWaitingMessages)
	g.MaxWaitingBytes = cmp.Or(g.MaxWaitingBytes, before.MaxWaitingBytes)
	g.MaxWaitingTasks = cmp.Or(g.MaxWaitingTasks, before.MaxWaitingTasks)
	g.BestPriority = cmp.Or(g.BestPriority, before.BestPriority)
	return g
}

// check refuses what limits nothing: an admin is limited by queues.
func (g Grants) check() error {
	if slices.Contains(g.Roles, "admin") && len(g.BusinessTypes) > 0 {
		return task.Invalid([]task.Field{{Name: "business_types", Message: "must be empty for an admin, who is limited by queues alone"}})
	}
	return nil
}

func (g Grants) equal(h Grants) bool {
	return slices.Equal(g.Roles, h.Roles) && slices.Equal(g.Queues, h.Queues) &&
		slices.Equal(g.BusinessTypes, h.BusinessTypes) && slices.Equal(g.Receives, h.Receives) &&
		orNone(g.MaxWaitingMessages) == orNone(h.MaxWaitingMessages) && orNone(g.MaxWaitingBytes) == orNone(h.MaxWaitingBytes) &&
		orNone(g.MaxWaitingTasks) == orNone(h.MaxWaitingTasks) && orNone(g.BestPriority) == orNone(h.BestPriority)
}

// orNone is a limit, or 0 for none.
func orNone(limit *int64) int64 {
	if limit == nil {
		return 0
	}
	return *limit
}

const rotateCallerSQL = `update callers set token_hash = $2, rotated_at = now() where id = $1 returning ` + callerColumns

// RotateCaller replaces a caller's token by the one whose SHA-256 is given. The
// errors are those of UpdateCaller.
func (db *DB) RotateCaller(ctx context.Context, id int64, tokenHash []byte, by Operator) (StoredCaller, error) {
	return db.changeCaller(ctx, id, "caller.rotate", by, func(tx pgx.Tx, _ StoredCaller, _ *StoredCaller) (StoredCaller, error) {
		return rowOf[StoredCaller](ctx, tx, "caller", rotateCallerSQL, id, tokenHash)
	})
}

// changeCaller changes a caller that is not revoked, under its lock. limits are those
// of the operator.
func (db *DB) changeCaller(ctx context.Context, id int64, action string, by Operator,
	change func(tx pgx.Tx, c StoredCaller, limits *StoredCaller) (StoredCaller, error)) (c StoredCaller, err error) {
	err = db.asAdmin(ctx, by, func(tx pgx.Tx) (auditEntry, error) {
		before, limits, err := lockCaller(ctx, tx, id, by)
		if err != nil {
			return auditEntry{}, err
		}
		if before.RevokedAt != nil {
			return auditEntry{}, task.Refuse(task.CodeConflict, "this caller is revoked; create another one")
		}
		c, err = change(tx, before, limits)
		return auditEntry{action, c.subject(), before.json(), c.json()}, err
	})
	return c, failed(action, err)
}

const revokeCallerSQL = `
update callers set revoked_at = now() where id = $1 returning ` + callerColumns

// silenceCallerSQL has a revoked caller's endpoints told nothing more.
const silenceCallerSQL = `
update webhook_endpoints set enabled = false, disabled_reason = 'by_hand', disabled_at = now()
where caller_id = $1 and url is not null and enabled`

const callerSQL = `select ` + callerColumns + ` from callers where id = $1`

// RevokeCaller shuts a caller out for good. A caller already revoked stays so
// without complaint; task.CodeNotFound when there is none.
func (db *DB) RevokeCaller(ctx context.Context, id int64, by Operator) (c StoredCaller, err error) {
	err = db.asAdmin(ctx, by, func(tx pgx.Tx) (auditEntry, error) {
		before, _, err := lockCaller(ctx, tx, id, by)
		if err != nil || before.RevokedAt != nil {
			c = before
			return auditEntry{}, err
		}
		c, err = rowOf[StoredCaller](ctx, tx, "caller", revokeCallerSQL, id)
		if err == nil {
			_, err = tx.Exec(ctx, silenceCallerSQL, id)
		}
		return auditEntry{"caller.revoke", c.subject(), before.json(), c.json()}, err
	})
	return c, failed("revoke caller", err)
}

// CallerByID finds a caller, revoked ones too; task.CodeNotFound when there is
// none.
func (db *DB) CallerByID(ctx context.Context, id int64) (StoredCaller, error) {
	c, err := rowOf[StoredCaller](ctx, db.read, "caller", callerSQL, id)
	return c, failed("caller", err)
}

const callersSQL = `
select ` + callerColumns + ` from callers
where id > $1 and ($2::text is null or name::text = $2::text or starts_with(name::text, $2::text || '.'))
order by id limit $3`

// Callers lists the callers by id, revoked ones too. after is the last id of
// the page before, 0 for the first page. limits are those of the operator, or nil: they
// select by name alone, so that no page shows other ids; see Manages for the rest.
func (db *DB) Callers(ctx context.Context, limits *StoredCaller, after int64, limit int) (page []StoredCaller, more bool, err error) {
	var name *string
	if limits != nil {
		name = &limits.Name
	}
	page, more, err = pageOf[StoredCaller](ctx, db.read, limit, callersSQL, after, name)
	return page, more, failed("callers", err)
}
