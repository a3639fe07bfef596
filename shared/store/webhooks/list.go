package webhooks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

// Delivery is one event for one endpoint, with its tries.
type Delivery struct {
	ID         task.ID
	EventID    string
	EventType  string
	Subject    string // the id of the task, endpoint, alert or test event
	EndpointID task.ID
	URL        string
	State      string     // pending, delivered, failed
	Tried      int32      // number of tries
	NextAt     *time.Time // when it is due, or while it is claimed, when its lease ends; nil unless pending
	CreatedAt  time.Time
	FinishedAt *time.Time      // nil while pending
	Tries      store.List[Try] // the last 50, oldest first; fewer if they would be larger than 1 MiB
	Payload    string          // the event; "" in a list
	Format     string          // of the endpoint, one of Formats; "" in a list, or if the endpoint was deleted
}

const deliveryColumns = `w.id, w.event_id, w.event_type, w.subject::text, w.endpoint_id, w.url,
    case w.state when 0 then 'pending' when 1 then 'delivered' else 'failed' end, w.tried, w.next_at, w.created_at, w.finished_at, w.tries`

// DeliveryFilter selects deliveries. A zero field selects all.
type DeliveryFilter struct {
	CallerID   *int64
	State      string // pending, delivered or failed
	EndpointID task.ID
	Subject    *task.ID
	From, To   time.Time // of the recording: at From or later, and before To
	After      task.ID   // the last id of the previous page
	Limit      int
}

const deliveriesSQL = `
select ` + deliveryColumns + `, '', ''
from webhook_deliveries w
where ($1::bigint is null or w.caller_id = $1) and ($2::smallint is null or w.state = $2) and ($3::uuid is null or w.endpoint_id = $3)
    and ($4::uuid is null or w.subject = $4) and ($5::uuid is null or w.id < $5) and ($6::uuid is null or w.id >= $6)
order by w.id desc
limit $7`

// Deliveries lists deliveries, newest first. more reports whether there is another page.
func (st *Store) Deliveries(ctx context.Context, f DeliveryFilter) (page []Delivery, more bool, err error) {
	var state *msg.DeliveryState
	if s, known := msg.ParseDeliveryState(f.State); known {
		state = &s
	}
	before, from := f.After, task.ID{} // before is exclusive
	if to := task.IDFloor(f.To); !f.To.IsZero() && (before.IsZero() || to.Compare(before) < 0) {
		before = to
	}
	if !f.From.IsZero() {
		from = task.IDFloor(f.From)
	}
	page, more, err = store.QueryPage[Delivery](ctx, st.db.Read, f.Limit, deliveriesSQL, f.CallerID, state, store.OrNull(f.EndpointID), f.Subject, store.OrNull(before), store.OrNull(from))
	return page, more, store.Wrap("deliveries", err)
}

const deliverySQL = `
select ` + deliveryColumns + `, ` + deliveryPayload + `, coalesce((select format from webhook_endpoints where id = w.endpoint_id), '')
from webhook_deliveries w
where w.id = $1 and ($2::bigint is null or w.caller_id = $2)`

// Delivery returns a delivery of a caller, or of any caller if callerID is nil. The error is task.CodeNotFound if there
// is none.
func (st *Store) Delivery(ctx context.Context, id task.ID, callerID *int64) (Delivery, error) {
	d, err := store.QueryOne[Delivery](ctx, st.db.Hot, "delivery", deliverySQL, id, callerID)
	return d, store.Wrap("delivery", err)
}

const (
	isEnabledSQL = `
select e.enabled from webhook_endpoints e
where e.id = (select endpoint_id from webhook_deliveries where id = $1 and ($2::bigint is null or caller_id = $2))`
	lockDeliverySQL = `
select caller_id, state, attempts, claims, next_at, now()
from webhook_deliveries
where id = $1 and ($2::bigint is null or caller_id = $2)
for update`
	resendSQL = `
update webhook_deliveries set state = $2, attempts = $3, claims = $4, next_at = $5, finished_at = null where id = $1`
)

const resendAction = "webhook.resend"

// Resend makes a delivery due at once, whatever its state; its id and the id of its event stay the same. The error is
// task.CodeNotFound as for Delivery, or task.CodeConflict if its endpoint is disabled or deleted, or its caller is
// revoked.
func (st *Store) Resend(ctx context.Context, id task.ID, callerID *int64, by store.Operator) (Delivery, error) {
	err := st.db.Audited(ctx, by, func(tx pgx.Tx) (store.AuditEntry, error) {
		type row struct {
			CallerID int64
			State    msg.DeliveryState
			Attempts int16
			Claims   int32
			NextAt   *time.Time
			Now      time.Time
		}
		enabled, err := store.QueryOne[struct{ Enabled bool }](ctx, tx, "endpoint", isEnabledSQL, id, callerID)
		if err != nil && task.CodeOf(err) != task.CodeNotFound {
			return store.AuditEntry{}, err
		}
		r, err := store.QueryOne[row](ctx, tx, "delivery", lockDeliverySQL, id, callerID)
		if err != nil {
			return store.AuditEntry{}, err
		}
		if err := refuseRevoked(ctx, tx, r.CallerID); err != nil {
			return store.AuditEntry{}, err
		}
		if !enabled.Enabled {
			return store.AuditEntry{}, task.Refuse(task.CodeConflict, "the endpoint of this delivery is disabled (enable it first) or deleted (nothing can be sent there)")
		}
		before := msg.Delivery{State: r.State, Attempts: r.Attempts, Claims: r.Claims, NextAt: store.OrZero(r.NextAt)}
		after := before.Resend(r.Now)
		_, err = tx.Exec(ctx, resendSQL, id, after.State, after.Attempts, after.Claims, after.NextAt)
		return store.AuditEntry{Action: resendAction, Subject: "delivery/" + id.String(), Before: deliveryJSON(before), After: deliveryJSON(after)}, err
	})
	if err != nil {
		return Delivery{}, store.Wrap("resend", err)
	}
	return st.Delivery(ctx, id, callerID)
}

// FailedFilter selects failed deliveries.
type FailedFilter struct {
	Since      time.Time // deliveries that failed at this time or later
	CallerID   *int64    // nil = all
	EndpointID task.ID   // zero = any
}

const lockFailedSQL = `
select w.id, w.state, w.attempts, w.claims, now()
from webhook_deliveries w
where w.state = 2 and w.finished_at >= $1 and ($2::bigint is null or w.caller_id = $2) and ($3::uuid is null or w.endpoint_id = $3)
    and exists (select from webhook_endpoints e left join callers c on c.id = e.caller_id where e.id = w.endpoint_id and e.enabled and c.revoked_at is null)
order by w.finished_at
limit $4
for update of w skip locked`

// resent is a failed delivery before and after it was made due again.
type resent struct {
	id            task.ID
	before, after msg.Delivery
}

// ResendFailed makes up to limit failed deliveries due again, those that failed first, in one transaction with an audit
// entry for each, and returns how many. It leaves out locked deliveries, and deliveries that Resend would refuse.
func (st *Store) ResendFailed(ctx context.Context, f FailedFilter, limit int, by store.Operator) (n int, err error) {
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		changes, err := lockFailed(ctx, tx, f, limit)
		if n = len(changes); err != nil || n == 0 {
			return err
		}
		var batch pgx.Batch
		for _, c := range changes {
			batch.Queue(resendSQL, c.id, c.after.State, c.after.Attempts, c.after.Claims, c.after.NextAt)
			by.QueueAudit(&batch, resendAction, "delivery/"+c.id.String(), deliveryJSON(c.before), deliveryJSON(c.after))
		}
		return tx.SendBatch(ctx, &batch).Close()
	})
	return n, store.Wrap("resend failed deliveries", err)
}

func lockFailed(ctx context.Context, tx pgx.Tx, f FailedFilter, limit int) (changes []resent, err error) {
	var c resent
	var now time.Time
	err = store.QueryEach(ctx, tx, lockFailedSQL, []any{f.Since, f.CallerID, store.OrNull(f.EndpointID), limit}, []any{&c.id, &c.before.State, &c.before.Attempts, &c.before.Claims, &now}, func() {
		c.after = c.before.Resend(now.Add(time.Duration(len(changes)) * time.Microsecond)) // due in the order in which they failed
		changes = append(changes, c)
	})
	return changes, err
}

func deliveryJSON(d msg.Delivery) string {
	return store.MustJSON(map[string]any{"state": d.State.String(), "attempts": d.Attempts, "next_at": store.TimeOrNull(d.NextAt)})
}

// UnhealthyEndpoints has the numbers of registered endpoints that fail or are disabled.
type UnhealthyEndpoints struct {
	Failing  int // enabled, and the last settled try failed
	Disabled int // for any reason
}

const unhealthyEndpointsSQL = `
select count(*) filter (where enabled and failing_since is not null), count(*) filter (where not enabled)
from webhook_endpoints where url is not null`

// UnhealthyEndpoints counts the unhealthy endpoints of all callers.
func (st *Store) UnhealthyEndpoints(ctx context.Context) (n UnhealthyEndpoints, err error) {
	err = st.db.Hot.QueryRow(ctx, unhealthyEndpointsSQL).Scan(&n.Failing, &n.Disabled)
	return n, store.Wrap("count unhealthy endpoints", err)
}
