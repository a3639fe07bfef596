package callers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// limitedOperator returns the row of a limited operator; nil for an operator without limits. It reads the row
// in the transaction of the change, since a cached row may be old.
func limitedOperator(ctx context.Context, tx pgx.Tx, by store.Operator) (*StoredCaller, error) {
	if by.CallerID == 0 { // the built-in admin
		return nil, nil
	}
	c, err := store.QueryOne[StoredCaller](ctx, tx, "operator", callerSQL, by.CallerID)
	switch {
	case task.CodeOf(err) == task.CodeNotFound:
		return nil, task.Refuse(task.CodeForbidden, "the caller that makes this change does not exist")
	case err != nil:
		return nil, err
	case c.RevokedAt != nil || !slices.Contains(c.Roles, "admin"):
		return nil, task.Refuse(task.CodeForbidden, "this caller is no admin any more")
	case len(c.Queues) == 0:
		return nil, nil
	}
	return &c, nil
}

// lockCallerSQL does not wait for transactions of other roles that insert rows with foreign keys to the caller.
const lockCallerSQL = `select ` + callerColumns + ` from callers where id = $1 for no key update`

// lockCaller locks and returns the row of a caller that an operator wants to change. limited is the row of the operator if it
// is limited, otherwise nil. The error is task.CodeNotFound if there is no such caller, or if the operator does not manage it.
func lockCaller(ctx context.Context, tx pgx.Tx, id int64, by store.Operator) (c StoredCaller, limited *StoredCaller, err error) {
	c, err = store.QueryOne[StoredCaller](ctx, tx, "caller", lockCallerSQL, id)
	if err != nil {
		return c, nil, err
	}
	limited, err = limitedOperator(ctx, tx, by)
	if err == nil && !limited.Manages(c) {
		err = store.NotFound("caller")
	}
	return c, limited, err
}

// Manages reports whether an operator may see and revoke a caller, and change it unless mustOwn refuses. A limited operator
// manages itself. It also manages a caller that it may name, if the caller's grants do not exceed those of the operator.
// A nil operator has no limits.
func (o *StoredCaller) Manages(c StoredCaller) bool {
	return o == nil || (c.Name == o.Name || o.MayName(c.Name)) && len(o.exceededBy(c.Grants)) == 0
}

// MayName reports whether an operator may give a caller this name. Inboxes, conversations and messages
// belong to a name and are not limited by queues. So a limited operator gives only names that begin
// with its own name and a dot.
func (o *StoredCaller) MayName(name string) bool {
	return o == nil || strings.HasPrefix(name, o.Name+".")
}

const madeByChainSQL = `
with recursive makers (id) as (
    select made_by from callers where id = $1
    union
    select c.made_by from callers c join makers on c.id = makers.id
)
select exists (select from makers where id = $2)`

// mustOwn refuses to change a caller that a limited operator made, unless o made that caller, directly or through
// others. When o is revoked or its grants are reduced, only the callers that o made are changed too: any other caller
// would keep the token or grants that o gave to it.
func (o *StoredCaller) mustOwn(ctx context.Context, tx pgx.Tx, c StoredCaller) error {
	if o == nil || c.ID == o.ID || c.MadeBy == nil {
		return nil
	}
	var own bool
	err := tx.QueryRow(ctx, madeByChainSQL, c.ID, o.ID).Scan(&own)
	if err == nil && !own {
		err = task.Refuse(task.CodeForbidden, "this caller belongs to another admin with queues (made_by): only that admin, the admins who made that admin, "+
			"and admins who are not limited to queues may change the caller or rotate its token; this admin may revoke it")
	}
	return err
}

const adoptSQL = `
update callers set account_id = $3, made_by = case id when $1 then $2 else made_by end where id = $1 or account_id = $1`

// adopt makes a limited operator the maker of a caller that no limited operator made, so that the token
// or grants that the operator gives to the caller end when the operator is revoked.
func (o *StoredCaller) adopt(ctx context.Context, tx pgx.Tx, c StoredCaller) error {
	if o == nil || c.ID == o.ID || c.MadeBy != nil {
		return nil
	}
	_, err := tx.Exec(ctx, adoptSQL, c.ID, o.ID, o.account())
	return err
}

// checkGrant refuses a name or grants that exceed the limits of an operator.
func (o *StoredCaller) checkGrant(name string, grants Grants) error {
	if o == nil {
		return nil
	}
	fields := o.exceededBy(grants)
	if !o.MayName(name) {
		fields = append([]task.Field{{Name: "name", Message: "must begin with " + o.Name + "."}}, fields...)
	}
	if len(fields) > 0 {
		return &task.Error{Code: task.CodeForbidden, Message: "an admin with queues may create and change only callers whose names begin with its own name and a dot, and may grant only what it has", Fields: fields}
	}
	return nil
}

// exceededBy returns the fields in which other grants more than g, such as a queue that g does not have.
func (g Grants) exceededBy(other Grants) (fields []task.Field) {
	for _, list := range []struct {
		name        string
		mine, other []string
		emptyIsAll  bool
	}{
		{"roles", g.Roles, other.Roles, false},
		{"queues", g.Queues, other.Queues, true},
		{"business_types", g.BusinessTypes, other.BusinessTypes, true},
		{"receives", g.Receives, other.Receives, false},
	} {
		switch {
		case list.emptyIsAll && len(list.mine) == 0:
		case list.emptyIsAll && len(list.other) == 0, slices.ContainsFunc(list.other, func(s string) bool { return !slices.Contains(list.mine, s) }):
			fields = append(fields, task.Field{Name: list.name, Message: mustBeSomeOf(list.mine)})
		}
	}
	for _, quota := range []struct {
		name        string
		mine, other int64
	}{
		{"max_waiting_messages", store.OrZero(g.MaxWaitingMessages), store.OrZero(other.MaxWaitingMessages)},
		{"max_waiting_bytes", store.OrZero(g.MaxWaitingBytes), store.OrZero(other.MaxWaitingBytes)},
		{"max_waiting_tasks", store.OrZero(g.MaxWaitingTasks), store.OrZero(other.MaxWaitingTasks)},
	} {
		switch {
		case quota.mine == 0 && quota.other != 0:
			fields = append(fields, task.Field{Name: quota.name, Message: "may be set only by an admin who is not limited to queues"})
		case quota.mine != 0 && (quota.other == 0 || quota.other > quota.mine):
			fields = append(fields, task.Field{Name: quota.name, Message: fmt.Sprintf("must be between 1 and %d", quota.mine)})
		}
	}
	if best := store.OrZero(g.BestPriority); store.OrZero(other.BestPriority) < best {
		fields = append(fields, task.Field{Name: "best_priority", Message: fmt.Sprintf("must be between %d and %d", best, task.DefaultPriority)})
	}
	return fields
}

func mustBeSomeOf(list []string) string {
	if len(list) == 0 {
		return "must be empty"
	}
	return "must be some of " + strings.Join(list, ", ")
}

// narrowedTo returns the part of g that is within limits. ok is false if no role is left; or if no queue or no business
// type is left, since an empty list of these would mean all.
func (g Grants) narrowedTo(limits Grants) (_ Grants, ok bool) {
	ok = true
	for _, list := range []struct {
		grants     *[]string
		limits     []string
		emptyIsAll bool
	}{
		{&g.Roles, limits.Roles, false},
		{&g.Queues, limits.Queues, true},
		{&g.BusinessTypes, limits.BusinessTypes, true},
		{&g.Receives, limits.Receives, false},
	} {
		switch {
		case list.emptyIsAll && len(list.limits) == 0:
		case list.emptyIsAll && len(*list.grants) == 0:
			*list.grants = list.limits
		default:
			*list.grants = slices.DeleteFunc(slices.Clone(*list.grants), func(s string) bool { return !slices.Contains(list.limits, s) })
			ok = ok && (len(*list.grants) > 0 || !list.emptyIsAll)
		}
	}
	for _, quota := range []struct {
		grant **int64
		limit *int64
	}{
		{&g.MaxWaitingMessages, limits.MaxWaitingMessages},
		{&g.MaxWaitingBytes, limits.MaxWaitingBytes},
		{&g.MaxWaitingTasks, limits.MaxWaitingTasks},
	} {
		if most := store.OrZero(quota.limit); most > 0 && (store.OrZero(*quota.grant) == 0 || **quota.grant > most) {
			*quota.grant = quota.limit
		}
	}
	if store.OrZero(g.BestPriority) < store.OrZero(limits.BestPriority) {
		g.BestPriority = limits.BestPriority
	}
	return g, ok && len(g.Roles) > 0
}
