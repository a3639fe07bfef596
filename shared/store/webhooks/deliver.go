package webhooks

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

// Destination identifies the deliveries that share the limit InFlightLimits.Destination: those to one endpoint, or a
// caller's callbacks to one host.
type Destination struct {
	EndpointID task.ID
	Host       string // of callbacks; "" for a registered endpoint
}

// DeliverySources defines source: the endpoints that have pending deliveries, with the earliest next_at of each. It
// needs one index probe for each endpoint.
const DeliverySources = `
with recursive source (caller_id, endpoint_id, next_at) as (
    (select caller_id, endpoint_id, next_at from webhook_deliveries where state = 0 order by caller_id, endpoint_id, next_at limit 1)
    union all
    select n.caller_id, n.endpoint_id, n.next_at from source s cross join lateral (
        select d.caller_id, d.endpoint_id, d.next_at from webhook_deliveries d
        where d.state = 0 and (d.caller_id, d.endpoint_id) > (s.caller_id, s.endpoint_id)
        order by d.caller_id, d.endpoint_id, d.next_at limit 1
    ) n
)`

// CallersOfSources joins the caller c of an endpoint s. The built-in admin has no row.
const CallersOfSources = ` left join callers c on c.id = s.caller_id`

// OpenSources leaves out endpoints s that are disabled or deleted, or whose caller is revoked.
const OpenSources = ` join webhook_endpoints e on e.id = s.endpoint_id
    where e.enabled and c.revoked_at is null`

// A process sends a robot one text in 4 s. An event that was tried before gets a text of its own, because the robot may
// have refused the earlier text for another event in it. One such event may be in flight beside new events, so that new
// events do not wait until all such events were sent.
const (
	singlePlaces       = `1` // how many events of a robot that were tried before may be in flight
	failingRobotPlaces = `4` // how many other events of a failing robot may be in flight
)

// claimDeliveriesSQL claims due deliveries: it sets next_at to the end of the lease.
const claimDeliveriesSQL = DeliverySources +
	// $6 is the limit of a destination, $7 that of an account, $8 that of all failing endpoints (messages.InFlightLimits).
	// in_flight: the deliveries that this process has claimed.
	`, in_flight as materialized (
    select * from unnest($2::bigint[], $3::uuid[], $4::text[], $5::boolean[], $10::boolean[]) as h (caller_id, endpoint_id, host, failing, single)
)` +
	// busy: how many deliveries in flight each account has, and how many of these are to failing endpoints.
	`, busy as materialized (
    select coalesce(c.account_id, h.caller_id) as account, count(*) as n, count(*) filter (where failing) as failing
    from in_flight h left join callers c on c.id = h.caller_id group by account
)` +
	// open: the enabled endpoints with something due, of accounts below their limit.
	`, open as materialized (
    select s.caller_id, coalesce(c.account_id, s.caller_id) as account, s.endpoint_id, e.url is null as callbacks, e.failing_since is not null as failing, e.format <> 'cloudevents' as robot,
        coalesce(b.n, 0) as busy, coalesce(b.failing, 0) as busy_failing, ` + store.RandomHash + ` as start
    from source s` + CallersOfSources + ` left join busy b on b.account = coalesce(c.account_id, s.caller_id)` + OpenSources + `
        and s.next_at <= now() and coalesce(b.n, 0) < $7
)` +
	// due: the 64 earliest of each endpoint; of a robot also the 32 latest, so that events that it has refused do not hide
	// new ones; and, so that no host hides another one, the $6 earliest of each of 64 hosts of callbacks. If there are more
	// hosts, the random start chooses 64. The condition on one host is a range, so that the planner uses the index of hosts
	// (webhook_deliveries_hosts). single: the event gets a text of its own.
	`, due as (
    select o.account, o.endpoint_id, o.failing, o.busy, o.busy_failing, o.robot, o.robot and w.tried > 0 as single, w.id, w.host, w.next_at
    from open o cross join lateral (
        select id, host, next_at, tried from webhook_deliveries
        where state = 0 and caller_id = o.caller_id and endpoint_id = o.endpoint_id and next_at <= now()
        order by next_at limit 64
    ) w
    union
    select o.account, o.endpoint_id, o.failing, o.busy, o.busy_failing, o.robot, w.tried > 0, w.id, w.host, w.next_at
    from open o cross join lateral (
        select id, host, next_at, tried from webhook_deliveries
        where state = 0 and caller_id = o.caller_id and endpoint_id = o.endpoint_id and next_at <= now()
        order by next_at desc limit 32
    ) w
    where o.robot
    union
    select o.account, o.endpoint_id, o.failing, o.busy, o.busy_failing, o.robot, o.robot and w.tried > 0, w.id, w.host, w.next_at
    from open o cross join lateral (
        with recursive hosts (hash, host) as (
            select o.start, ''
            union
            select n.hash, n.host from hosts cross join lateral (
                (select hashtextextended(host, 0) as hash, host from webhook_deliveries
                where state = 0 and host <> '' and endpoint_id = o.endpoint_id and (hashtextextended(host, 0), host) > (hosts.hash, hosts.host)
                order by hashtextextended(host, 0), host limit 1)
                union all
                (select hashtextextended(host, 0), host from webhook_deliveries
                where state = 0 and host <> '' and endpoint_id = o.endpoint_id
                order by hashtextextended(host, 0), host limit 1)
                limit 1
            ) n
        )
        select hash, host from hosts where host <> '' limit 64
    ) hosts cross join lateral (
        select id, host, next_at, tried from webhook_deliveries
        where state = 0 and host <> '' and endpoint_id = o.endpoint_id
            and (hashtextextended(host, 0), host) >= (hosts.hash, hosts.host)
            and (hashtextextended(host, 0), host, next_at) <= (hosts.hash, hosts.host, now())
        order by hashtextextended(host, 0), host, next_at limit $6
    ) w
    where o.callbacks
)` +
	// by_host: turn is the position of a due delivery at its endpoint or host of callbacks. The deliveries in flight come
	// first, then the due ones, earliest first. Single events of a robot have turns of their own. places is the highest turn
	// that may be claimed.
	`, by_host as (
    select due.*, coalesce(h.n, 0) + row_number() over (partition by due.endpoint_id, due.host, due.single order by due.next_at) as turn,
        case when single then ` + singlePlaces + ` when failing and robot then ` + failingRobotPlaces + ` when failing then 1 else $6 end as places
    from due left join (select endpoint_id, host, single, count(*) as n from in_flight group by endpoint_id, host, single) h
        using (endpoint_id, host, single)
)` +
	// failing_of_account: the deliveries within the limit of their destination, also those to endpoints that do not fail.
	// turn_failing is the position of a delivery to a failing endpoint among those of its account.
	`, failing_of_account as (
    select *, case when failing then busy_failing + row_number() over (partition by account, failing order by turn, random()) else 0 end as turn_failing
    from by_host where turn <= places
)` +
	// failing_of_all: of these, for each account at most a quarter of $8 (or one) to failing endpoints, including those in
	// flight. number is the position of a delivery to a failing endpoint among those of all accounts, which take turns.
	`, failing_of_all as (
    select *, row_number() over (partition by failing order by turn_failing, random()) as number
    from failing_of_account where turn_failing <= greatest($8 / 4, 1)
)` +
	// by_account: of these, at most $8 to failing endpoints, including those in flight. turn is the position of a due
	// delivery in its account. The deliveries in flight come first, then the due ones by their turn in by_host.
	`, by_account as (
    select id, busy + row_number() over (partition by account order by turn, random()) as turn
    from failing_of_all where not failing or number <= $8 - (select count(*) from in_flight where in_flight.failing)
)` +
	// claimed: the deliveries with the lowest turn, so that the accounts take turns; locked rows are skipped. There is no
	// condition on state, because only pending deliveries have a next_at. With such a condition, the planner might read an
	// index of all pending deliveries for each row.
	`, claimed as materialized (
    select x.id from (select id from by_account where turn <= $7 order by turn, random()) p cross join lateral (
        select w.id from webhook_deliveries w where w.id = p.id and w.next_at <= now() for update skip locked
    ) x
    limit $1
)
update webhook_deliveries w set claims = least(w.claims, 2147483646) + 1, next_at = now() + make_interval(secs => $9)
from claimed, webhook_endpoints s
where w.id = claimed.id and s.id = w.endpoint_id
returning w.id, w.caller_id, w.endpoint_id, w.host, w.event_id, w.url, ` + deliveryPayload + `, w.claims, w.tried > 0, s.failing_since is not null,
    s.caller_id, coalesce(s.url, ''), s.format, s.secret, case when s.old_secret_until > now() then s.old_secret end`

// deliveryPayload is what the delivery w sends; "" if its event is missing.
const deliveryPayload = `coalesce((select payload from webhook_events where id = w.event_id), '')`

// DueDelivery is a claimed delivery: an event to be posted to an endpoint or callback URL now. It is leased to one
// process.
type DueDelivery struct {
	Destination
	ID       task.ID
	CallerID int64
	EventID  string
	URL      string
	Format   string // of its endpoint, one of Formats
	Payload  string // "" = the event is missing: only a compromised function writes such a delivery
	Claim    int32  // the fence
	Tried    bool   // it was posted before
	Failing  bool   // the last settled try at the endpoint, of any delivery, failed; never for callbacks
	Signing
}

// Single reports whether the delivery is to a robot and needs a text of its own, because it was tried before.
func (d DueDelivery) Single() bool { return d.Format != FormatCloudEvents && d.Tried }

// ClaimDeliveries claims due deliveries, up to limits. A failing endpoint has at most one in flight, a failing robot
// failingRobotPlaces. Any robot may have one more, which was tried before. inFlight are the deliveries that this process
// has claimed and not settled: they count towards the limits. A delivery that is not settled within lease is due again.
func (st *Store) ClaimDeliveries(ctx context.Context, limits messages.InFlightLimits, inFlight []DueDelivery, lease time.Duration) (due []DueDelivery, err error) {
	rows, err := st.db.Hot.Query(ctx, claimDeliveriesSQL, limits.All-len(inFlight),
		store.Column(inFlight, func(d DueDelivery) int64 { return d.CallerID }),
		store.Column(inFlight, func(d DueDelivery) task.ID { return d.EndpointID }),
		store.Column(inFlight, func(d DueDelivery) string { return d.Host }),
		store.Column(inFlight, func(d DueDelivery) bool { return d.Failing }),
		limits.Destination, limits.Account, limits.Failing, lease.Seconds(),
		store.Column(inFlight, DueDelivery.Single))
	if err != nil {
		return nil, store.Wrap("claim deliveries", err)
	}
	var d DueDelivery
	var owner int64
	var endpointURL string
	var secret, old *string
	err = store.Each(rows, []any{&d.ID, &d.CallerID, &d.EndpointID, &d.Host, &d.EventID, &d.URL, &d.Payload, &d.Claim, &d.Tried, &d.Failing, &owner, &endpointURL, &d.Format, &secret, &old}, func() {
		d.Signing = st.signing(EndpointRow(d.EndpointID, owner, endpointURL), secret, old)
		due = append(due, d)
	})
	if err != nil { // the claim was not committed
		return nil, store.Wrap("claim deliveries", err)
	}
	return due, nil
}

// anyDeliverySQL returns whether there are pending deliveries, whether there are messages to URLs with sends left,
// and the time. If there is neither, as when most processes start, NextDelivery need not plan the statements below.
const anyDeliverySQL = `
select exists (select from webhook_deliveries where state = 0), exists (select from message_live where remaining_sends > 0 and kind = 1), now()`

const nextDeliverySQL = `select least((` + nextWebhookSQL + `), (` + nextPostSQL + `))`

const nextWebhookSQL = DeliverySources + ` select min(s.next_at) from source s` + CallersOfSources + OpenSources

const nextPostSQL = messages.PostSources + ` select min(next_at) from source`

// NextDelivery returns when the next delivery or message to a URL is due, zero if there is none, and whether that time
// has come (due). A leased delivery or message is due when its lease ends.
func (st *Store) NextDelivery(ctx context.Context) (at time.Time, due bool, err error) {
	var webhooks, posts bool
	var now time.Time
	err = st.db.Hot.QueryRow(ctx, anyDeliverySQL).Scan(&webhooks, &posts, &now)
	switch {
	case err != nil || !webhooks && !posts:
	case !posts:
		at, err = st.db.QueryTime(ctx, nextWebhookSQL)
	case !webhooks:
		at, err = st.db.QueryTime(ctx, nextPostSQL)
	default:
		at, err = st.db.QueryTime(ctx, nextDeliverySQL)
	}
	return at, !at.IsZero() && !at.After(now), store.Wrap("next delivery", err)
}

// Try is one try to post a delivery, as stored in webhook_deliveries.tries.
type Try struct {
	At         time.Time `json:"at"`
	Status     int       `json:"status,omitempty"` // HTTP status; 0 if there was no response
	DurationMS int64     `json:"duration_ms"`
	Error      string    `json:"error,omitempty"`    // why the try failed, for people
	Response   string    `json:"response,omitempty"` // the beginning of the response body
}

// Valid implements store.Element.
func (t Try) Valid() bool { return store.ValidTime(t.At) }

// Tried is a claimed delivery with the result of its try.
type Tried struct {
	DueDelivery
	Result msg.PostResult
	Try    Try
}

const (
	// lockHealthSQL locks those endpoints of $1 whose health may change: those that are failing, and those to which a try
	// failed ($2). Callbacks have no health. If another transaction has locked an endpoint, the second column is false and
	// the columns after it are empty.
	lockHealthSQL = `
with held as materialized (
    select id, coalesce(disabled_reason, '') as reason, failing_since from webhook_endpoints
    where id = any($1::uuid[]) and url is not null and (failing_since is not null or id = any($2::uuid[]))
    for no key update skip locked
)
select e.id, held.id is not null, coalesce(held.reason, ''), held.failing_since
from webhook_endpoints e left join held on held.id = e.id
where e.id = any($1::uuid[]) and e.url is not null and (e.failing_since is not null or e.id = any($2::uuid[]))`
	// lockDeliveriesSQL locks deliveries. If another transaction has locked a delivery, the second column is false.
	lockDeliveriesSQL = `
with held as materialized (
    select id, state, attempts, claims, next_at from webhook_deliveries where id = any($1::uuid[]) for update skip locked
)
select w.id, held.id is not null, coalesce(held.state, 0), coalesce(held.attempts, 0), coalesce(held.claims, 0), held.next_at
from webhook_deliveries w left join held on held.id = w.id
where w.id = any($1::uuid[])`
	updateHealthSQL = `
update webhook_endpoints e set failing_since = t.failing_since, disabled_reason = nullif(t.reason, ''),
    disabled_at = case when t.reason = '' then null else coalesce(e.disabled_at, now()) end, enabled = t.reason = ''
from unnest($1::uuid[], $2::timestamptz[], $3::text[]) as t (id, failing_since, reason)
where e.id = t.id`
	updateDeliveriesSQL = `
update webhook_deliveries d set state = t.state, attempts = t.attempts, next_at = t.next_at,
    finished_at = case when t.state = 0 then null else coalesce(d.finished_at, now()) end,
    tried = least(d.tried, 2147483646) + 1, tries = (
        select case when octet_length(tries::text) <= 1048576 then tries else jsonb_build_array(t.try::jsonb) end
        from (select case when jsonb_array_length(d.tries) < 50 then d.tries else d.tries - 0 end || t.try::jsonb as tries) appended)
from unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::timestamptz[], $5::text[]) as t (id, state, attempts, next_at, try)
where d.id = t.id`
	insertDisabledSQL = `insert into event_outbox (kind, ids) values ('` + store.KindWebhookDisabled + `', $1)`
)

// EndpointChange is a change in the health of an endpoint: it began to fail, recovered or was disabled.
type EndpointChange struct {
	ID            task.ID
	URL           string
	Before, After msg.EndpointHealth
	Error         string // of the last try; "" = the try succeeded
}

// Settled is the result of SettleDeliveries.
type Settled struct {
	Unsettled []int       // indexes of tries that are not stored; settle them again. A row was locked, or an earlier element was a try of the same delivery
	NextTries []time.Time // when failed deliveries are due again
	Changed   []EndpointChange
}

// SettleDeliveries stores the results of tries. It disables an endpoint that returned 410 or whose tries have all
// failed for disableAfter, and writes an event about the endpoint. One call serves many callers, so SettleDeliveries
// never waits for a locked row: it returns the index of the try in Settled.Unsettled. It drops the try of a delivery
// that no longer exists.
func (st *Store) SettleDeliveries(ctx context.Context, tried []Tried, disableAfter time.Duration) (settled Settled, err error) {
	if len(tried) == 0 {
		return Settled{}, nil
	}
	notifier := st.db.NewNotifier()
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		s, err := lockTried(ctx, tx, tried)
		if err != nil {
			return err
		}
		settled = s.decide(tried, disableAfter)
		var batch pgx.Batch
		s.queue(&batch, notifier)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return settled, store.Wrap("settle deliveries", notifier.Notify(err))
}

// settling has the deliveries and endpoints that a transaction has locked, and their changes.
type settling struct {
	now        time.Time
	health     map[task.ID]msg.EndpointHealth // of the locked endpoints, whose health may change
	deliveries map[task.ID]msg.Delivery
	skip       map[task.ID]bool // endpoints and deliveries that another transaction has locked, and deliveries in updated

	updated  []task.ID // the deliveries to update, with one try each
	tries    []string  // the try of each delivery in updated, as JSON
	changed  []task.ID // endpoints whose health changed
	disabled []task.ID // endpoints in changed that this transaction disables
}

func lockTried(ctx context.Context, tx pgx.Tx, tried []Tried) (*settling, error) {
	s := &settling{health: map[task.ID]msg.EndpointHealth{}, deliveries: map[task.ID]msg.Delivery{}, skip: map[task.ID]bool{}}
	var failed []task.ID
	for _, t := range tried {
		if !t.Result.OK() {
			failed = append(failed, t.EndpointID)
		}
	}
	var batch pgx.Batch
	batch.Queue(`select now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&s.now) })
	batch.Queue(lockHealthSQL, store.Column(tried, func(t Tried) task.ID { return t.EndpointID }), failed).Query(func(rows pgx.Rows) error {
		var id task.ID
		var locked bool
		var reason string
		var failing *time.Time
		return store.Each(rows, []any{&id, &locked, &reason, &failing}, func() {
			if s.skip[id] = !locked; locked {
				s.health[id] = msg.EndpointHealth{DisabledReason: reason, FailingSince: store.OrZero(failing)}
			}
		})
	})
	batch.Queue(lockDeliveriesSQL, store.Column(tried, func(t Tried) task.ID { return t.ID })).Query(func(rows pgx.Rows) error {
		var id task.ID
		var locked bool
		var d msg.Delivery
		var next *time.Time
		return store.Each(rows, []any{&id, &locked, &d.State, &d.Attempts, &d.Claims, &next}, func() {
			if s.skip[id] = !locked; locked {
				d.NextAt = store.OrZero(next)
				s.deliveries[id] = d
			}
		})
	})
	return s, tx.SendBatch(ctx, &batch).Close()
}

// decide applies the result of each try to its delivery and its endpoint.
func (s *settling) decide(tried []Tried, disableAfter time.Duration) (settled Settled) {
	original, lastTry := maps.Clone(s.health), map[task.ID]Tried{}
	for i, t := range tried {
		if s.skip[t.ID] || s.skip[t.EndpointID] {
			settled.Unsettled = append(settled.Unsettled, i)
			continue
		}
		d, found := s.deliveries[t.ID]
		if !found {
			continue
		}
		d = d.Settle(t.Claim, t.Result, s.now, rand.Float64())
		s.deliveries[t.ID], s.skip[t.ID] = d, true // updateDeliveriesSQL takes one try of each delivery
		s.updated, s.tries = append(s.updated, t.ID), append(s.tries, store.MustJSON(t.Try.stored()))
		if !d.NextAt.IsZero() {
			settled.NextTries = append(settled.NextTries, d.NextAt)
		}
		lastTry[t.EndpointID] = t
		before, mayChange := s.health[t.EndpointID]
		after := before.AfterAttempt(t.Result, s.now, disableAfter)
		if !mayChange || after == before {
			continue
		}
		s.health[t.EndpointID] = after
		s.changed = append(s.changed, t.EndpointID)
		if after.DisabledReason != before.DisabledReason {
			s.disabled = append(s.disabled, t.EndpointID)
		}
	}
	slices.SortFunc(s.changed, task.ID.Compare)
	s.changed = slices.Compact(s.changed)
	for _, id := range s.changed {
		if before, after := original[id], s.health[id]; before != after {
			settled.Changed = append(settled.Changed, EndpointChange{ID: id, URL: lastTry[id].URL, Before: before, After: after, Error: lastTry[id].Try.Error})
		}
	}
	return settled
}

// stored returns the try without characters that the database cannot store.
func (t Try) stored() Try {
	t.Error, t.Response = store.Storable(t.Error), store.Storable(t.Response)
	return t
}

func (s *settling) queue(batch *pgx.Batch, notifier *store.Notifier) {
	batch.Queue(updateDeliveriesSQL, s.updated,
		store.Column(s.updated, func(id task.ID) int16 { return int16(s.deliveries[id].State) }),
		store.Column(s.updated, func(id task.ID) int16 { return s.deliveries[id].Attempts }),
		store.Column(s.updated, func(id task.ID) *time.Time { return store.TimeOrNull(s.deliveries[id].NextAt) }), s.tries)
	if len(s.changed) > 0 {
		batch.Queue(updateHealthSQL, s.changed,
			store.Column(s.changed, func(id task.ID) *time.Time { return store.TimeOrNull(s.health[id].FailingSince) }),
			store.Column(s.changed, func(id task.ID) string { return s.health[id].DisabledReason }))
	}
	if len(s.disabled) > 0 {
		notifier.CountRows(batch.Queue(insertDisabledSQL, s.disabled))
	}
}
