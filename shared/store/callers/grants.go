package callers

import (
	"cmp"
	"slices"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Grants are the rights of a caller. In a change of a caller, nil leaves a value as it is.
type Grants struct {
	Roles         []string
	Queues        []string // empty = all
	BusinessTypes []string // of subscribe messages; empty = all
	Receives      []string // patterns of the subjects whose messages it may confirm; empty = none

	MaxWaitingMessages *int64 // messages that may wait; nil or 0 = the limit of the settings
	MaxWaitingBytes    *int64 // bytes of their data; likewise
	MaxWaitingTasks    *int64 // tasks that may be unfinished; likewise

	BestPriority *int64 // the smallest number that it may give as the priority of a task, 0 to task.DefaultPriority; nil = 0 in a new caller
}

// filledFrom returns g, with the values of before instead of nil.
func (g Grants) filledFrom(before Grants) Grants {
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

// check refuses business types for an admin, because business types do not limit an admin.
func (g Grants) check() error {
	if slices.Contains(g.Roles, "admin") && len(g.BusinessTypes) > 0 {
		return task.Invalid([]task.Field{{Name: "business_types", Message: "must be empty for an admin, who is limited by queues alone"}})
	}
	return nil
}

func (g Grants) equal(h Grants) bool {
	return slices.Equal(g.Roles, h.Roles) && slices.Equal(g.Queues, h.Queues) &&
		slices.Equal(g.BusinessTypes, h.BusinessTypes) && slices.Equal(g.Receives, h.Receives) &&
		store.OrZero(g.MaxWaitingMessages) == store.OrZero(h.MaxWaitingMessages) && store.OrZero(g.MaxWaitingBytes) == store.OrZero(h.MaxWaitingBytes) &&
		store.OrZero(g.MaxWaitingTasks) == store.OrZero(h.MaxWaitingTasks) && store.OrZero(g.BestPriority) == store.OrZero(h.BestPriority)
}
