package admin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sendonce/sendonce/shared/store"
)

// Action is one entry of the audit trail.
type Action struct {
	ID         int64
	CallerID   int64
	CallerName string
	RequestID  string
	Action     string // such as template.update
	Subject    string // such as template/7, or a task's id
	Reason     string
	Before     json.RawMessage // nil = there was no row
	After      json.RawMessage // nil = the row was deleted
	CreatedAt  time.Time
}

const actionsSQL = `
select id, caller_id, caller_name, request_id, action, subject, coalesce(reason, ''), before, after, created_at
from operator_actions
where ($1 = '' or subject = $1) and ($2::bigint = 0 or id < $2)
order by id desc
limit $3`

// Actions lists the audit entries of a subject ("" = of all subjects), newest first, without archived entries. after is the
// last id of the previous page; 0 = the first page.
func (st *Store) Actions(ctx context.Context, subject string, after int64, limit int) (page []Action, more bool, err error) {
	page, more, err = store.QueryPage[Action](ctx, st.db.Read, limit, actionsSQL, subject, after)
	return page, more, store.Wrap("actions", err)
}
