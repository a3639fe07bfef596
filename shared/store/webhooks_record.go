package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// ToldEvent is an event as its receivers get it.
type ToldEvent struct {
	ID      string
	Kind    string // task.<state>, webhook.disabled, alert.raised or alert.cleared
	Type    string
	Subject task.ID // the task, the endpoint or the alert
	Payload string  // the body of each POST
}

// listenersSQL finds who is told: of a task, or of an endpoint that was disabled,
// the caller's enabled endpoints that want the kind; of an alert those of all
// admins without queues, the built-in one included. A caller that was revoked is told nothing.
const listenersSQL = `
select o.caller_id, case when not o.revoked then o.callback_url end, e.id, e.url
from (
    select subject.*, exists (select from callers c where c.id = subject.caller_id and c.revoked_at is not null) as revoked
    from (
        select caller_id, callback_url from tasks where id = $1
        union all
        select caller_id, callback_url from archived_tasks where id = $1
        union all
        select caller_id, null from webhook_endpoints where id = $1
        union all
        select admins.id, null from (select from alerts where id = $1) alert
        cross join (select 0 union all select id from callers where 'admin' = any(roles) and queues = '{}' and revoked_at is null) admins (id)
    ) subject
) o
left join webhook_endpoints e on e.caller_id = o.caller_id and e.url is not null and e.enabled and not o.revoked
    and (e.events = '{}' or $2::text = any(e.events))`

// insertDeliveriesSQL keeps the endpoints from being deleted meanwhile.
const insertDeliveriesSQL = `
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, payload, lane)
select t.id, $3, t.endpoint_id, e.caller_id, $4, $5, t.url, $6, case when e.url is null then t.host else '' end
from unnest($1::uuid[], $2::uuid[], $7::text[], $8::text[]) as t (id, endpoint_id, url, host)
join (select id, caller_id, url from webhook_endpoints where id = any($2::uuid[]) order by id for key share) e on e.id = t.endpoint_id
on conflict (event_id, endpoint_id) do nothing`

// callbackEndpointSQL gives the row that a caller's callbacks belong to.
const callbackEndpointSQL = `select id from webhook_endpoints where caller_id = $1 and url is null`

// RecordEvent makes sure that an event will be told to everyone who is to hear
// of it, once each however often it is recorded, and gives how many these are;
// fresh makes the signing secret of a caller that has none yet.
// task.CodeNotFound when the event's subject does not exist.
func (db *DB) RecordEvent(ctx context.Context, e ToldEvent, fresh func() string) (told int, err error) {
	l, err := db.listeners(ctx, e)
	if err == nil && l.callback != "" {
		err = db.addCallback(ctx, l, fresh)
	}
	if err != nil || len(l.endpoints) == 0 {
		return 0, failed("record event", err)
	}
	ids := column(l.endpoints, func(task.ID) task.ID { return task.NewID() })
	_, err = db.hot.Exec(ctx, insertDeliveriesSQL, ids, l.endpoints, e.ID, e.Type, e.Subject, e.Payload, l.urls, column(l.urls, hostOf))
	return len(ids), failed("record event", err)
}

// listeners is who is told of an event.
type listeners struct {
	caller    int64     // whose event it is; without meaning for an alert, which is all admins'
	callback  string    // the task's own URL; "" = none
	endpoints []task.ID // and their URLs
	urls      []string
}

func (db *DB) listeners(ctx context.Context, e ToldEvent) (*listeners, error) {
	rows, err := db.hot.Query(ctx, listenersSQL, e.Subject, e.Kind)
	if err != nil {
		return nil, err
	}
	var l listeners
	var callback, url *string
	var id *task.ID
	tag, err := pgx.ForEachRow(rows, []any{&l.caller, &callback, &id, &url}, func() error {
		l.callback = orEmpty(callback)
		if id != nil {
			l.endpoints, l.urls = append(l.endpoints, *id), append(l.urls, *url)
		}
		return nil
	})
	if err == nil && tag.RowsAffected() == 0 {
		err = errNotFound("subject of this event")
	}
	return &l, err
}

// addCallback adds the task's own URL, under the row of the caller's secret.
func (db *DB) addCallback(ctx context.Context, l *listeners, fresh func() string) error {
	if _, err := db.SigningSecrets(ctx, []int64{l.caller}, fresh); err != nil {
		return err
	}
	var id task.ID
	err := db.hot.QueryRow(ctx, callbackEndpointSQL, l.caller).Scan(&id)
	l.endpoints, l.urls = append(l.endpoints, id), append(l.urls, l.callback)
	return err
}
