package callers

import (
	"cmp"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// StoredCaller is a row of callers without the hash of the token.
type StoredCaller struct {
	ID   int64
	Name string
	Grants
	CreatedAt time.Time
	RotatedAt *time.Time // when the token was last replaced; nil = never
	RevokedAt *time.Time // nil = may call
	MadeBy    *int64     // the limited operator that made it, or was the first to replace its token or to grant it more; nil = none
	AccountID *int64     // the caller at the beginning of the chain of MadeBy; nil = itself
}

// account returns the ID of the caller's account.
func (c StoredCaller) account() int64 { return cmp.Or(store.OrZero(c.AccountID), c.ID) }

func (c StoredCaller) subject() string { return fmt.Sprintf("caller/%d", c.ID) }

func (c StoredCaller) json() string {
	return store.MustJSON(map[string]any{
		"name": c.Name, "roles": c.Roles, "queues": c.Queues, "business_types": c.BusinessTypes, "receives": c.Receives,
		"max_waiting_messages": c.MaxWaitingMessages, "max_waiting_bytes": c.MaxWaitingBytes, "max_waiting_tasks": c.MaxWaitingTasks,
		"best_priority": c.BestPriority, "rotated_at": c.RotatedAt, "revoked_at": c.RevokedAt, "made_by": c.MadeBy,
	})
}

const callerColumns = `id, name, roles, queues, business_types, receives, max_waiting_messages, max_waiting_bytes, max_waiting_tasks, best_priority, created_at, rotated_at, revoked_at, made_by, account_id`

const callerSQL = `select ` + callerColumns + ` from callers where id = $1`
