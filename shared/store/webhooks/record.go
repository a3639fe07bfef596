package webhooks

import (
	"cmp"
	"context"
	"slices"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// RecordedEvent is an event as its receivers get it.
type RecordedEvent struct {
	ID      string
	Kind    string // task.<state>, webhook.disabled, alert.raised or alert.cleared
	Type    string
	Subject task.ID // the task, the endpoint or the alert
	Payload string  // the body of each POST
}

// receiversSQL finds the receivers of each event. For a task, or an endpoint that was
// disabled, they are the caller's enabled endpoints that want the kind; for an alert
// those of all admins without queues, the built-in one included. A revoked caller
// receives nothing. Each event whose subject exists has at least one row. The caller of
// a deleted endpoint is that of its deliveries. A cleared alert may be deleted before its
// events are recorded, so its row is not read.
const receiversSQL = `
select t.n, o.caller_id, case when not o.revoked then o.callback_url end, e.id, e.url
from unnest($1::uuid[], $2::text[]) with ordinality as t (subject, kind, n)
cross join lateral (
    select subject.*, exists (select from callers c where c.id = subject.caller_id and c.revoked_at is not null) as revoked
    from (
        select caller_id, callback_url from tasks where id = t.subject
        union all
        select caller_id, callback_url from archived_tasks where id = t.subject
        union all
        select caller_id, null from webhook_endpoints where id = t.subject
        union all
        (select caller_id, null from webhook_deliveries
         where t.kind = '` + store.KindWebhookDisabled + `' and endpoint_id = t.subject and not exists (select from webhook_endpoints where id = t.subject)
         limit 1)
        union all
        select admins.id, null
        from (select 0 union all select id from callers where 'admin' = any(roles) and queues = '{}' and revoked_at is null) admins (id)
        where t.kind in ('` + store.KindAlertRaised + `', '` + store.KindAlertCleared + `')
    ) subject
    offset 0
) o
left join lateral (
    select id, url from webhook_endpoints
    where caller_id = o.caller_id and url is not null and enabled and not o.revoked and (events = '{}' or t.kind = any(events))
    offset 0
) e on true
order by t.n`

// insertDeliveriesSQL does not lock the endpoints, as it serves many callers: a delivery
// to an endpoint that is deleted meanwhile is ended by EndUndeliverable. $1 to $5 are
// the deliveries, each with the ordinal of its event in $6 to $9; those of one endpoint
// are due in the order of the events. They are inserted in one order and committed at
// once, so two transactions never deadlock.
//
// An event that is recorded again keeps its payload. Its row is locked, and recorded_at is
// renewed if it is older than 12 hours, so that deleteOldEventsSQL does not delete it: that
// keeps events of the last day.
const insertDeliveriesSQL = `
with event as (
    insert into webhook_events (id, payload)
    select distinct on (event_id) event_id, payload from unnest($6::text[], $9::text[]) as o (event_id, payload) order by event_id
    on conflict (id) do update set recorded_at = now() where webhook_events.recorded_at < now() - interval '12 hours'
)
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, host, next_at)
select t.id, o.event_id, t.endpoint_id, e.caller_id, o.event_type, o.subject, t.url, case when e.url is null then t.host else '' end,
    now() - make_interval(secs => (cardinality($6::text[]) - t.n) * 1e-6)
from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::text[]) as t (id, n, endpoint_id, url, host)
join unnest($6::text[], $7::text[], $8::uuid[]) with ordinality as o (event_id, event_type, subject, n) on o.n = t.n
join webhook_endpoints e on e.id = t.endpoint_id
order by o.event_id, t.endpoint_id
on conflict (event_id, endpoint_id) do nothing`

// callbackEndpointsSQL returns the row of each caller to which its callbacks belong.
const callbackEndpointsSQL = `select caller_id, id from webhook_endpoints where caller_id = any($1::bigint[]) and url is null`

// maxHost is the number of characters of a host that are stored. No host that has an address is longer.
const maxHost = 255

// Limits of one statement that records deliveries.
const (
	recordRows  = 500
	recordBytes = 2 << 20 // of payloads, each of which is stored once
)

// RecordEvents records a delivery of each event to each of its receivers, once each
// however often the event is recorded. The deliveries of callers with the fewest come
// first. Each statement has a bounded size and is its own transaction: after an error
// some deliveries are recorded, and recording all events again adds the others.
//
// recorded is the number of deliveries, and unknown has the indexes of the events whose
// subject does not exist; it is empty after an error. An event of an alert is never
// unknown, and neither is one of an endpoint: a caller may delete the endpoint first, and
// if it has no deliveries left, the event has no receivers. fresh makes the signing secret
// of a caller that has none yet.
func (st *Store) RecordEvents(ctx context.Context, events []RecordedEvent, fresh func() string) (recorded int, unknown []int, err error) {
	d, unknown, err := st.receivers(ctx, events)
	if err == nil {
		err = st.addCallbacks(ctx, d, fresh)
	}
	if err != nil {
		return 0, nil, store.Wrap("record events", err)
	}
	d.sortByFanOut()
	for rest := d.rows; len(rest) > 0; {
		next := rest[:fittingInStatement(rest, events)]
		if err := st.insertDeliveries(ctx, next, events); err != nil {
			return recorded, nil, store.Wrap("record events", err)
		}
		recorded += len(next)
		rest = rest[len(next):]
	}
	return recorded, unknown, nil
}

// fittingInStatement returns how many of the first rows fit in one statement, at least
// one. Adjacent rows of one event share its payload.
func fittingInStatement(rows []newDelivery, events []RecordedEvent) int {
	size := 0
	for i, r := range rows {
		if i == 0 || r.ordinal != rows[i-1].ordinal {
			size += len(events[r.ordinal-1].Payload)
		}
		if i > 0 && (i == recordRows || size > recordBytes) {
			return i
		}
	}
	return len(rows)
}

func (st *Store) insertDeliveries(ctx context.Context, rows []newDelivery, events []RecordedEvent) error {
	ordinals := store.Column(rows, func(r newDelivery) int64 { return r.ordinal })
	slices.Sort(ordinals)
	ordinals = slices.Compact(ordinals)
	of := store.Column(ordinals, func(ordinal int64) RecordedEvent { return events[ordinal-1] })
	_, err := st.db.Hot.Exec(ctx, insertDeliveriesSQL,
		store.Column(rows, func(newDelivery) task.ID { return task.NewID() }),
		store.Column(rows, func(r newDelivery) int64 {
			i, _ := slices.BinarySearch(ordinals, r.ordinal)
			return int64(i) + 1
		}),
		store.Column(rows, func(r newDelivery) task.ID { return r.endpoint }),
		store.Column(rows, func(r newDelivery) string { return r.url }), store.Column(rows, func(r newDelivery) string { return task.Cut(messages.HostOf(r.url), maxHost) }),
		store.Column(of, func(e RecordedEvent) string { return e.ID }), store.Column(of, func(e RecordedEvent) string { return e.Type }),
		store.Column(of, func(e RecordedEvent) task.ID { return e.Subject }), store.Column(of, func(e RecordedEvent) string { return e.Payload }))
	return err
}

// deliveries are the rows that RecordEvents inserts.
type deliveries struct {
	rows      []newDelivery
	callbacks []taskURL // addCallbacks adds their rows
}

// newDelivery is an event for one endpoint.
type newDelivery struct {
	ordinal  int64 // of the event, from 1
	caller   int64
	endpoint task.ID
	url      string
}

// sortByFanOut puts the callers with the fewest rows first, and the rows of one caller in
// the order of the events.
func (d *deliveries) sortByFanOut() {
	fanOut := map[int64]int{}
	for _, r := range d.rows {
		fanOut[r.caller]++
	}
	slices.SortStableFunc(d.rows, func(a, b newDelivery) int {
		return cmp.Or(cmp.Compare(fanOut[a.caller], fanOut[b.caller]), cmp.Compare(a.caller, b.caller), cmp.Compare(a.ordinal, b.ordinal))
	})
}

// taskURL is a task's own callback URL.
type taskURL struct {
	ordinal int64 // of the event, from 1
	caller  int64
	url     string
}

func (st *Store) receivers(ctx context.Context, events []RecordedEvent) (d *deliveries, unknown []int, err error) {
	rows, err := st.db.Hot.Query(ctx, receiversSQL, store.Column(events, func(e RecordedEvent) task.ID { return e.Subject }), store.Column(events, func(e RecordedEvent) string { return e.Kind }))
	if err != nil {
		return nil, nil, err
	}
	d = new(deliveries)
	known := make([]bool, len(events))
	var ordinal, caller int64
	var own, url *string
	var id *task.ID
	err = store.Each(rows, []any{&ordinal, &caller, &own, &id, &url}, func() {
		if own != nil && !known[ordinal-1] {
			d.callbacks = append(d.callbacks, taskURL{ordinal, caller, *own})
		}
		known[ordinal-1] = true
		if id != nil {
			d.rows = append(d.rows, newDelivery{ordinal, caller, *id, *url})
		}
	})
	if err != nil { // not all rows were read
		return nil, nil, err
	}
	for i, is := range known {
		if !is && events[i].Kind != store.KindWebhookDisabled {
			unknown = append(unknown, i)
		}
	}
	return d, unknown, nil
}

// addCallbacks adds a row for each callback URL. Its endpoint is the row that has the caller's signing secret.
func (st *Store) addCallbacks(ctx context.Context, d *deliveries, fresh func() string) error {
	if len(d.callbacks) == 0 {
		return nil
	}
	callers := store.Column(d.callbacks, func(c taskURL) int64 { return c.caller })
	slices.Sort(callers)
	callers = slices.Compact(callers)
	secrets, err := st.SigningSecrets(ctx, callers, fresh)
	for _, s := range secrets {
		if err == nil && store.IsPoison(s.Err) { // no such caller, so no row to deliver under
			err = s.Err
		}
	}
	if err != nil {
		return err
	}
	endpoints := make(map[int64]task.ID, len(callers))
	var caller int64
	var id task.ID
	err = store.QueryEach(ctx, st.db.Hot, callbackEndpointsSQL, []any{callers}, []any{&caller, &id}, func() {
		endpoints[caller] = id
	})
	for _, c := range d.callbacks {
		d.rows = append(d.rows, newDelivery{c.ordinal, c.caller, endpoints[c.caller], c.url})
	}
	return err
}
