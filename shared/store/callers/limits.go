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

// limitsOf returns the row of a limited operator; nil for an operator without limits. It
// is read in the transaction of the change, as a cached row may be old.
func limitsOf(ctx context.Context, tx pgx.Tx, by store.Operator) (*StoredCaller, error) {
	if by.CallerID == 0 { // the built-in admin
		return nil, nil
	}
	c, err := store.QueryOne[StoredCaller](ctx, tx, "operator", callerSQL, by.CallerID)
	switch {
	case task.CodeOf(err) == task.CodeNotFound:
		return nil, task.Refuse(task.CodeForbidden, "the operator is no caller")
	case err != nil:
		return nil, err
	case c.RevokedAt != nil || !slices.Contains(c.Roles, "admin"):
		return nil, task.Refuse(task.CodeForbidden, "this caller is no admin any more")
	case len(c.Queues) == 0:
		return nil, nil
	}
	return &c, nil
}

// lockCaller locks the row of a caller that an operator wants to change, and returns
// the limits of the operator.
func lockCaller(ctx context.Context, tx pgx.Tx, id int64, by store.Operator) (StoredCaller, *StoredCaller, error) {
	c, err := store.QueryOne[StoredCaller](ctx, tx, "caller", lockCallerSQL, id)
	if err != nil {
		return c, nil, err
	}
	limits, err := limitsOf(ctx, tx, by)
	if err == nil && !limits.Manages(c) {
		err = store.NotFound("caller")
	}
	return c, limits, err
}

// Manages reports whether a caller exists for an operator. For a limited operator, that is itself
// and the callers that it may name, if their grants do not exceed its own. A nil operator has no
// limits.
func (o *StoredCaller) Manages(c StoredCaller) bool {
	return o == nil || (c.Name == o.Name || o.MayName(c.Name)) && len(o.narrowerThan(c.Grants)) == 0
}

// MayName reports whether an operator may give a caller this name. Inboxes, conversations
// and messages belong to a name and are not limited by queues, so the names that a limited
// operator gives begin with its own name and a dot.
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

// mustOwn refuses to change a caller that another limited operator made, unless o is in the
// chain of its makers. Otherwise a token or grants from o would remain valid when o is
// revoked or narrowed, which only changes callers that o made.
func (o *StoredCaller) mustOwn(ctx context.Context, tx pgx.Tx, c StoredCaller) error {
	if o == nil || c.ID == o.ID || c.MadeBy == nil {
		return nil
	}
	var own bool
	err := tx.QueryRow(ctx, madeByChainSQL, c.ID, o.ID).Scan(&own)
	if err == nil && !own {
		err = task.Refuse(task.CodeForbidden, "this caller belongs to another admin with queues (made_by): only that admin, those to whom it belongs, "+
			"and admins without queues may change the caller or rotate its token; this admin may revoke it")
	}
	return err
}

const adoptSQL = `
update callers set account_id = $3, made_by = case id when $1 then $2 else made_by end where id = $1 or account_id = $1`

// adopt makes a limited operator the maker of a caller that no limited operator made. With a new
// token the operator can act as the caller, and what it grants must end when it is revoked.
func (o *StoredCaller) adopt(ctx context.Context, tx pgx.Tx, c StoredCaller) error {
	if o == nil || c.ID == o.ID || c.MadeBy != nil {
		return nil
	}
	_, err := tx.Exec(ctx, adoptSQL, c.ID, o.ID, o.account())
	return err
}

// mayGrant refuses a name and grants that go beyond the limits of an operator.
func (o *StoredCaller) mayGrant(name string, theirs Grants) error {
	if o == nil {
		return nil
	}
	wider := o.narrowerThan(theirs)
	if !o.MayName(name) {
		wider = append([]task.Field{{Name: "name", Message: "must begin with " + o.Name + "."}}, wider...)
	}
	if len(wider) > 0 {
		return &task.Error{Code: task.CodeForbidden, Message: "an admin with queues names callers after itself, and grants no more than it has", Fields: wider}
	}
	return nil
}

// narrowerThan returns the fields in which theirs goes beyond g.
func (g Grants) narrowerThan(theirs Grants) (fields []task.Field) {
	for _, list := range []struct {
		name         string
		mine, theirs []string
		emptyIsAll   bool
	}{
		{"roles", g.Roles, theirs.Roles, false},
		{"queues", g.Queues, theirs.Queues, true},
		{"business_types", g.BusinessTypes, theirs.BusinessTypes, true},
		{"receives", g.Receives, theirs.Receives, false},
	} {
		switch {
		case list.emptyIsAll && len(list.mine) == 0:
		case list.emptyIsAll && len(list.theirs) == 0, slices.ContainsFunc(list.theirs, func(s string) bool { return !slices.Contains(list.mine, s) }):
			fields = append(fields, task.Field{Name: list.name, Message: oneOrMoreOf(list.mine)})
		}
	}
	for _, quota := range []struct {
		name         string
		mine, theirs int64
	}{
		{"max_waiting_messages", orNone(g.MaxWaitingMessages), orNone(theirs.MaxWaitingMessages)},
		{"max_waiting_bytes", orNone(g.MaxWaitingBytes), orNone(theirs.MaxWaitingBytes)},
		{"max_waiting_tasks", orNone(g.MaxWaitingTasks), orNone(theirs.MaxWaitingTasks)},
	} {
		switch {
		case quota.mine == 0 && quota.theirs != 0:
			fields = append(fields, task.Field{Name: quota.name, Message: "is set by an admin without queues"})
		case quota.mine != 0 && (quota.theirs == 0 || quota.theirs > quota.mine):
			fields = append(fields, task.Field{Name: quota.name, Message: fmt.Sprintf("must be between 1 and %d", quota.mine)})
		}
	}
	if best := orNone(g.BestPriority); orNone(theirs.BestPriority) < best {
		fields = append(fields, task.Field{Name: "best_priority", Message: fmt.Sprintf("must be between %d and %d", best, task.DefaultPriority)})
	}
	return fields
}

func oneOrMoreOf(mine []string) string {
	if len(mine) == 0 {
		return "must be empty"
	}
	return fmt.Sprintf("must be some of %s", strings.Join(mine, ", "))
}

// narrowedTo returns the part of g that is within limits. ok is false if no role is left, or if
// nothing is left of a list for which empty means all.
func (g Grants) narrowedTo(limits Grants) (_ Grants, ok bool) {
	ok = true
	for _, list := range []struct {
		of         *[]string
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
		case list.emptyIsAll && len(*list.of) == 0:
			*list.of = list.limits
		default:
			*list.of = slices.DeleteFunc(slices.Clone(*list.of), func(s string) bool { return !slices.Contains(list.limits, s) })
			ok = ok && (len(*list.of) > 0 || !list.emptyIsAll)
		}
	}
	for _, quota := range []struct{ of, limit **int64 }{
		{&g.MaxWaitingMessages, &limits.MaxWaitingMessages},
		{&g.MaxWaitingBytes, &limits.MaxWaitingBytes},
		{&g.MaxWaitingTasks, &limits.MaxWaitingTasks},
	} {
		if most := orNone(*quota.limit); most > 0 && (orNone(*quota.of) == 0 || **quota.of > most) {
			*quota.of = *quota.limit
		}
	}
	if orNone(g.BestPriority) < orNone(limits.BestPriority) {
		g.BestPriority = limits.BestPriority
	}
	return g, ok && len(g.Roles) > 0
}
