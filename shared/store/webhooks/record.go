package webhooks

import (
	"cmp"
	"context"
	"slices"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// RecordedEvent is an event to be recorded.
type RecordedEvent struct {
	ID      string
	Kind    string // task.<state>, webhook.disabled, alert.raised or alert.cleared; unused by SendTest
	Type    string
	Subject task.ID // the task, the endpoint or the alert; of a test event, the event itself
	Payload string  // the event as JSON: the body of each POST, except to a chat robot
}

// receiversSQL returns the receivers of each event: enabled endpoints that subscribe to the kind of event, and the
// callback URL of the task. If the subject is a task or a disabled endpoint, they are endpoints of the subject's
// caller. If the subject is an alert, they are endpoints of all admins who are not limited to queues, the built-in
// admin included. A revoked caller receives nothing. Each event whose subject exists has at least one row, also if it
// has no receivers. The caller of a deleted endpoint is found in the deliveries to the endpoint. The row of an alert is
// not read, because a cleared alert may be deleted before its events are recorded.
const receiversSQL = `
select t.n, owner.caller_id, case when not owner.revoked then owner.callback_url end, e.id, e.url
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
) owner
left join lateral (
    select id, url from webhook_endpoints
    where caller_id = owner.caller_id and url is not null and enabled and not owner.revoked and (events = '{}' or t.kind = any(events))
    offset 0
) e on true
order by t.n`

// insertDeliveriesSQL inserts deliveries ($1 to $5) and their events ($6 to $9); $2 has the ordinal of the event of
// each delivery. Deliveries to one endpoint are due in the order of the events. All transactions insert in the same
// order, so two never deadlock. The statement serves many callers, so it does not lock endpoints: if an endpoint is
// deleted meanwhile, EndUndeliverable ends the delivery.
//
// An event that is recorded again keeps its payload. The statement locks the row of the event, and renews recorded_at
// if it is older than 12 hours. So deleteOldEventsSQL, which keeps events of the last day, does not delete the event.
const insertDeliveriesSQL = `
with event as (
    insert into webhook_events (id, payload)
    select distinct on (event_id) event_id, payload from unnest($6::text[], $9::text[]) as v (event_id, payload) order by event_id
    on conflict (id) do update set recorded_at = now() where webhook_events.recorded_at < now() - interval '12 hours'
)
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, host, next_at)
select d.id, v.event_id, d.endpoint_id, e.caller_id, v.event_type, v.subject, d.url, case when e.url is null then d.host else '' end,
    now() - make_interval(secs => (cardinality($6::text[]) - d.n) * 1e-6)
from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::text[]) as d (id, n, endpoint_id, url, host)
join unnest($6::text[], $7::text[], $8::uuid[]) with ordinality as v (event_id, event_type, subject, n) on v.n = d.n
join webhook_endpoints e on e.id = d.endpoint_id
order by v.event_id, d.endpoint_id
on conflict (event_id, endpoint_id) do nothing`

// callbackEndpointsSQL returns, for each caller, the row of webhook_endpoints without a URL: the caller's callbacks
// belong to it.
const callbackEndpointsSQL = `select caller_id, id from webhook_endpoints where caller_id = any($1::bigint[]) and url is null`

// maxHost is how many characters of a host are stored. A name in DNS is shorter.
const maxHost = 255

// Limits of one statement that records deliveries.
const (
	recordRows  = 500
	recordBytes = 2 << 20 // of payloads, each counted once
)

// RecordEvents records one delivery of each event to each of its receivers, however often the event is recorded. It
// begins with the callers that have the fewest deliveries in this call. Each statement has a bounded size and is a
// transaction of its own. After an error, some deliveries may be recorded; recording all events again adds the missing
// ones.
//
// recorded is the number of deliveries, including those that were recorded before. unknown has the indexes of the
// events whose subject does not exist; it is empty after an error. Events of alerts and of endpoints are never unknown:
// if an endpoint was deleted and no delivery to it is left, the event of the endpoint has no receivers. fresh makes a
// signing secret for a caller whose tasks have callback URLs and that has no secret yet.
func (st *Store) RecordEvents(ctx context.Context, events []RecordedEvent, fresh func() string) (recorded int, unknown []int, err error) {
	d, unknown, err := st.receivers(ctx, events)
	if err == nil {
		err = st.addCallbacks(ctx, d, fresh)
	}
	if err != nil {
		return 0, nil, store.Wrap("record events", err)
	}
	d.sortFewestFirst()
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

// fittingInStatement returns how many rows, from the first on, fit in one statement: at least one. The payload of adjacent
// rows of one event counts once.
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
	needed := store.Column(ordinals, func(ordinal int64) RecordedEvent { return events[ordinal-1] })
	_, err := st.db.Hot.Exec(ctx, insertDeliveriesSQL,
		store.Column(rows, func(newDelivery) task.ID { return task.NewID() }),
		store.Column(rows, func(r newDelivery) int64 {
			i, _ := slices.BinarySearch(ordinals, r.ordinal)
			return int64(i) + 1
		}),
		store.Column(rows, func(r newDelivery) task.ID { return r.endpoint }),
		store.Column(rows, func(r newDelivery) string { return r.url }),
		store.Column(rows, func(r newDelivery) string { return task.Cut(messages.HostOf(r.url), maxHost) }),
		store.Column(needed, func(e RecordedEvent) string { return e.ID }), store.Column(needed, func(e RecordedEvent) string { return e.Type }),
		store.Column(needed, func(e RecordedEvent) task.ID { return e.Subject }), store.Column(needed, func(e RecordedEvent) string { return e.Payload }))
	return err
}

// deliveries are the rows that RecordEvents inserts.
type deliveries struct {
	rows      []newDelivery
	callbacks []newDelivery // to callback URLs of tasks; addCallbacks sets their endpoints and adds them to rows
}

// newDelivery is a delivery to be inserted: an event for one endpoint or callback URL.
type newDelivery struct {
	ordinal  int64 // of the event, from 1
	caller   int64
	endpoint task.ID
	url      string
}

// sortFewestFirst puts the rows of the callers with the fewest rows first, and the rows of one caller in
// the order of the events.
func (d *deliveries) sortFewestFirst() {
	ofCaller := map[int64]int{}
	for _, r := range d.rows {
		ofCaller[r.caller]++
	}
	slices.SortStableFunc(d.rows, func(a, b newDelivery) int {
		return cmp.Or(cmp.Compare(ofCaller[a.caller], ofCaller[b.caller]), cmp.Compare(a.caller, b.caller), cmp.Compare(a.ordinal, b.ordinal))
	})
}

// receivers returns the deliveries of the events (those to callback URLs only in d.callbacks), and the indexes of the
// events whose subject does not exist.
func (st *Store) receivers(ctx context.Context, events []RecordedEvent) (d *deliveries, unknown []int, err error) {
	d = new(deliveries)
	known := make([]bool, len(events))
	subjects, kinds := store.Column(events, func(e RecordedEvent) task.ID { return e.Subject }), store.Column(events, func(e RecordedEvent) string { return e.Kind })
	var ordinal, caller int64
	var callback, url *string
	var id *task.ID
	err = store.QueryEach(ctx, st.db.Hot, receiversSQL, []any{subjects, kinds}, []any{&ordinal, &caller, &callback, &id, &url}, func() {
		if callback != nil && !known[ordinal-1] { // only once: each row of an event has the same callback
			d.callbacks = append(d.callbacks, newDelivery{ordinal: ordinal, caller: caller, url: *callback})
		}
		known[ordinal-1] = true
		if id != nil {
			d.rows = append(d.rows, newDelivery{ordinal, caller, *id, *url})
		}
	})
	if err != nil { // not all rows were read
		return nil, nil, err
	}
	for i, isKnown := range known {
		if !isKnown && events[i].Kind != store.KindWebhookDisabled {
			unknown = append(unknown, i)
		}
	}
	return d, unknown, nil
}

// addCallbacks adds the deliveries to callback URLs to d.rows. Their endpoint is the row of webhook_endpoints that has
// the caller's signing secret.
func (st *Store) addCallbacks(ctx context.Context, d *deliveries, fresh func() string) error {
	if len(d.callbacks) == 0 {
		return nil
	}
	callers := store.Column(d.callbacks, func(c newDelivery) int64 { return c.caller })
	slices.Sort(callers)
	callers = slices.Compact(callers)
	signing, err := st.SigningSecrets(ctx, callers, fresh)
	if err != nil {
		return err
	}
	for _, s := range signing {
		if store.IsPoison(s.Err) { // there is no such caller, so there is no endpoint
			return s.Err
		}
	}
	endpoints := make(map[int64]task.ID, len(callers))
	var caller int64
	var id task.ID
	err = store.QueryEach(ctx, st.db.Hot, callbackEndpointsSQL, []any{callers}, []any{&caller, &id}, func() {
		endpoints[caller] = id
	})
	for _, c := range d.callbacks {
		c.endpoint = endpoints[c.caller]
		d.rows = append(d.rows, c)
	}
	return err
}
