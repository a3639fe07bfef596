package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// limitsOf returns what an operator with queues may do itself: it grants no more, and
// a caller that may do more does not exist for it. nil for an operator without limits. It
// is read in the transaction of the change, so that what a process remembers of
// the operator does not count.
func limitsOf(ctx context.Context, tx pgx.Tx, by Operator) (*Grants, error) {
	if by.CallerID == 0 { // the pair of the environment has no row
		return nil, nil
	}
	c, err := rowOf[StoredCaller](ctx, tx, "operator", callerSQL, by.CallerID)
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
	return &c.Grants, nil
}

// lockCaller locks the row of a caller that an operator wants to change, and returns
// the limits of the operator.
func lockCaller(ctx context.Context, tx pgx.Tx, id int64, by Operator) (StoredCaller, *Grants, error) {
	c, err := rowOf[StoredCaller](ctx, tx, "caller", lockCallerSQL, id)
	if err != nil {
		return c, nil, err
	}
	limits, err := limitsOf(ctx, tx, by)
	if err == nil && limits != nil && !limits.Cover(c.Grants) {
		err = errNotFound("caller")
	}
	return c, limits, err
}

// Cover tells whether a caller with these grants may do all that one with theirs may.
func (g Grants) Cover(theirs Grants) bool { return len(g.narrowerThan(theirs)) == 0 }

// mayGrant refuses grants that go beyond the limits of an operator; nil has none.
func (g *Grants) mayGrant(theirs Grants) error {
	if g == nil {
		return nil
	}
	if wider := g.narrowerThan(theirs); len(wider) > 0 {
		return &task.Error{Code: task.CodeForbidden, Message: "an admin with queues grants no more than it has itself", Fields: wider}
	}
	return nil
}

// narrowerThan names the fields of theirs that go beyond g.
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
	} {
		switch {
		case quota.mine == 0 && quota.theirs != 0:
			fields = append(fields, task.Field{Name: quota.name, Message: "is set by an admin without queues"})
		case quota.mine != 0 && (quota.theirs == 0 || quota.theirs > quota.mine):
			fields = append(fields, task.Field{Name: quota.name, Message: fmt.Sprintf("must be between 1 and %d", quota.mine)})
		}
	}
	return fields
}

func oneOrMoreOf(mine []string) string {
	if len(mine) == 0 {
		return "must be empty"
	}
	return fmt.Sprintf("must be some of %s", strings.Join(mine, ", "))
}
