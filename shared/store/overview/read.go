package overview

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

const (
	maxRows   = 100_000   // the most rows counted for one queue and state, and for most other numbers
	totalRows = 1_000_000 // about the most rows counted for one state, divided equally among the queues
	minRows   = 1000      // the least share of totalRows that a queue has
	maxQueues = 1000      // the most queues that are counted in the order of their names, besides those with counters
	maxAlerts = 100
)

// overviewPlanSQL makes the statements use indexes, even if the statistics of the tables are wrong, and limits each to
// 5 s.
const overviewPlanSQL = `
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('statement_timeout', '5s', true)`

// countStateSQL counts the tasks with the state $1, of the queues with counters and of the first $3 queues by name,
// each found by one probe of the index. So a caller that uses very many queues cannot hide the queues with counters. Of each
// queue it counts at most max_rows tasks: an equal share of $5, but at least $4 and at most $2.
const countStateSQL = `
with recursive names (queue) as (
    (select queue from task_live where state = $1::smallint order by queue limit 1)
    union all
    select (select l.queue from task_live l where l.state = $1::smallint and l.queue > n.queue order by l.queue limit 1)
    from names n where n.queue is not null
), queues as materialized (
    select name as queue from overview_totals where kind = 0 and key = 0 and name <> ''
    union
    (select queue from names where queue is not null limit $3::bigint)
), per_queue as materialized (
    select least($2::bigint, greatest($4::bigint, $5::bigint / greatest(count(*), 1))) as max_rows
    from queues q where exists (select from task_live l where l.state = $1::smallint and l.queue = q.queue offset 0)
)
select q.queue, least(c.n, max_rows), c.n > max_rows, c.retries, coalesce(c.age, 0)
from queues q cross join per_queue cross join lateral (
    select count(*) as n, count(*) filter (where retry_count > 0) as retries, extract(epoch from now() - min(updated_at))::float8 as age
    from (select retry_count, updated_at from task_live l where l.state = $1::smallint and l.queue = q.queue limit max_rows + 1) l
) c
where c.n > 0`

// countLeasesSQL counts the $1 leases that end first, by queue and by app. It returns at most $2 rows, each of a queue
// or an app, those with the most leases first.
const countLeasesSQL = `
select coalesce(queue, ''), coalesce(app_id, ''), grouping(queue) = 0, count(*), extract(epoch from now() - min(updated_at))::float8, max(updated_at)
from (select queue, app_id, updated_at from task_live where state = 2 order by due_at limit $1::bigint) l
group by grouping sets ((queue), (app_id))
order by 4 desc
limit $2::bigint`

const pausesSQL = `
select queue, reason, paused_by, by_hand, created_at, until from queue_pauses
where until is null or until > now() order by queue limit $1::bigint`

const openAlertsSQL = `
select id, since, kind, queue, value, threshold from alerts where cleared_at is null order by since desc limit $1::bigint`

// overviewOtherSQL returns what does not belong to a queue. Counts stop at $1, except the counts of webhook endpoints.
const overviewOtherSQL = `
select now(), (select counted_to from overview_counted),
    array(select stream from stream_pauses where failures > 0 order by stream),
    (select count(*) from (select from template_pauses where paused_at is not null limit $1::bigint) c),
    (select count(*) from (select from dead_letters where dead limit $1::bigint) c),
    (select count(*) from (select from event_outbox limit $1::bigint) c),
    (select count(*) from (select from message_live where status = 0 and remaining_sends = 0 limit $1::bigint) c),
    (select count(*) from (select from message_live where status = 1 and remaining_sends = 0 limit $1::bigint) c),
    (select count(*) from webhook_endpoints where url is not null and enabled and failing_since is not null),
    (select count(*) from webhook_endpoints where url is not null and not enabled),
    coalesce(extract(epoch from now() - (select created_at from event_outbox order by id limit 1))::float8, 0)`

// dueMessagesSQL reads at most $1 messages to URLs (kind 1) and $1 other messages. It returns how many of these are
// due, how many it has read, and how long the earliest of all messages has been due, read or not: one probe of an index
// finds the earliest of each caller and stream.
const dueMessagesSQL = `
with recursive streams (caller_id, stream, next_at) as (
    (select caller_id, stream, next_at from message_live where remaining_sends > 0 and kind <> 1 order by caller_id, stream, next_at limit 1)
    union all
    select n.caller_id, n.stream, n.next_at from streams s cross join lateral (
        select caller_id, stream, next_at from message_live
        where remaining_sends > 0 and kind <> 1 and (caller_id, stream) > (s.caller_id, s.stream)
        order by caller_id, stream, next_at limit 1
    ) n
), posts (caller_id, next_at) as (
    (select caller_id, next_at from message_live where remaining_sends > 0 and kind = 1 order by caller_id, next_at limit 1)
    union all
    select n.caller_id, n.next_at from posts p cross join lateral (
        select caller_id, next_at from message_live where remaining_sends > 0 and kind = 1 and caller_id > p.caller_id
        order by caller_id, next_at limit 1
    ) n
)
select count(*) filter (where next_at <= now()), count(*), coalesce(extract(epoch from now() - least(
    (select min(next_at) from streams), (select min(next_at) from posts)))::float8, 0)
from (
    (select next_at from message_live where remaining_sends > 0 and kind <> 1 limit $1::bigint)
    union all
    (select next_at from message_live where remaining_sends > 0 and kind = 1 limit $1::bigint)
) m`

// waitingDeliveriesSQL reads at most $1 of the deliveries that deliver may send: not those to disabled endpoints or of
// revoked callers. It returns how many of these are due, how many will be tried again later, how many it has read, and
// how long the earliest of all deliveries that deliver may send has been due.
const waitingDeliveriesSQL = webhooks.DeliverySources + `, open as materialized (
    select s.caller_id, s.endpoint_id, s.next_at from source s` + webhooks.CallersOfSources + webhooks.OpenSources + `
)
select count(*) filter (where next_at <= now()), count(*) filter (where next_at > now() and attempts > 0), count(*),
    coalesce(extract(epoch from now() - (select min(next_at) from open))::float8, 0)
from (
    select d.next_at, d.attempts from open o cross join lateral (
        select next_at, attempts from webhook_deliveries
        where state = 0 and caller_id = o.caller_id and endpoint_id = o.endpoint_id order by next_at limit $1::bigint
    ) d
    limit $1::bigint
) d`

// totalsSQL returns the counters of the queues in $1 and of the apps in $2. Under the empty name, it returns the sums
// for all other queues and for all other apps.
const totalsSQL = `
select kind, key, case when name = any(case when kind < 7 then $1::text[] else $2::text[] end) then name else '' end,
    least(sum(n), 1000000000000000000)::bigint, least(sum(seconds), 1e15), max(last_at)
from overview_totals where kind > 0
group by 1, 2, 3`

const throughputSQL = `
select since, case when queue = any($1::text[]) then queue else '' end, least(sum(submitted), 1000000000000000000)::bigint,
    least(sum(succeeded), 1000000000000000000)::bigint, least(sum(failed), 1000000000000000000)::bigint
from overview_throughput where since > $2::timestamptz
group by 1, 2 order by 1`

// namesSQL returns the names that have counters of their own; key is nameOfQueue or nameOfApp.
const namesSQL = `select key, name from overview_totals where kind = 0 and name <> ''`

// Read returns a snapshot.
func (st *Store) Read(ctx context.Context) (Snapshot, error) {
	r := reader{queues: map[string]*Queue{}, senders: map[string]*Sender{}}
	err := pgx.BeginTxFunc(ctx, st.db.Read, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := r.readLive(ctx, tx); err != nil {
			return err
		}
		r.chooseNames()
		return r.readTotals(ctx, tx)
	})
	if err != nil {
		return Snapshot{}, store.Wrap("overview", err)
	}
	return r.snapshot, nil
}

// reader collects the rows of one snapshot.
type reader struct {
	snapshot Snapshot
	queues   map[string]*Queue  // by name
	senders  map[string]*Sender // by app

	queuesWithCounters, appsWithCounters []string
}

func (r *reader) queue(name string) *Queue {
	if r.queues[name] == nil {
		r.queues[name] = &Queue{Name: name}
	}
	return r.queues[name]
}

func (r *reader) sender(app string) *Sender {
	if r.senders[app] == nil {
		r.senders[app] = &Sender{App: app}
	}
	return r.senders[app]
}

// readLive reads everything but the counters. It also reads which names have counters.
func (r *reader) readLive(ctx context.Context, tx pgx.Tx) error {
	var batch pgx.Batch
	batch.Queue(overviewPlanSQL)
	for _, state := range []task.State{task.Scheduled, task.Pending, task.Held} {
		batch.Queue(countStateSQL, int16(state), maxRows, maxQueues, minRows, totalRows).Query(func(rows pgx.Rows) error {
			return r.addState(rows, state)
		})
	}
	batch.Queue(countLeasesSQL, maxRows, 4*maxQueues).Query(r.addLeases)
	batch.Queue(pausesSQL, maxQueues).Query(r.addPauses)
	batch.Queue(openAlertsSQL, maxAlerts).Query(func(rows pgx.Rows) (err error) {
		r.snapshot.Alerts, err = pgx.AppendRows(r.snapshot.Alerts, rows, pgx.RowToStructByPos[Alert])
		return err
	})
	batch.Queue(overviewOtherSQL, maxRows+1).QueryRow(r.addOthers)
	batch.Queue(dueMessagesSQL, maxRows+1).QueryRow(func(row pgx.Row) error {
		var due, rowsRead int
		var age float64
		err := row.Scan(&due, &rowsRead, &age)
		r.snapshot.Messages.Due = Backlog{Count{due, rowsRead > maxRows}, seconds(age)}
		return err
	})
	batch.Queue(waitingDeliveriesSQL, maxRows+1).QueryRow(r.addDeliveries)
	batch.Queue(namesSQL).Query(r.addNames)
	return tx.SendBatch(ctx, &batch).Close()
}

func (r *reader) addState(rows pgx.Rows, state task.State) error {
	var name string
	var n, retries int
	var more bool
	var age float64
	return store.Each(rows, []any{&name, &n, &more, &retries, &age}, func() {
		q, count := r.queue(name), Count{n, more}
		switch state {
		case task.Scheduled:
			q.Scheduled = count
		case task.Pending:
			q.Pending, q.Retries = Backlog{count, seconds(age)}, Count{retries, more}
		case task.Held:
			q.Held = Backlog{count, seconds(age)}
		}
	})
}

func (r *reader) addLeases(rows pgx.Rows) error {
	var queue, app string
	var ofQueue bool
	var n, total int
	var age float64
	var last time.Time
	err := store.Each(rows, []any{&queue, &app, &ofQueue, &n, &age, &last}, func() {
		if ofQueue {
			total += n
			r.queue(queue).Processing = Backlog{Count{N: n}, seconds(age)}
		} else {
			s := r.sender(app)
			s.Processing, s.LastClaim = Count{N: n}, last
		}
	})
	if total >= maxRows {
		for _, q := range r.queues {
			q.Processing.More = q.Processing.N > 0
		}
		for _, s := range r.senders {
			s.Processing.More = s.Processing.N > 0
		}
	}
	return err
}

func (r *reader) addPauses(rows pgx.Rows) error {
	var name string
	var p Pause
	var until *time.Time
	return store.Each(rows, []any{&name, &p.Reason, &p.By, &p.Manual, &p.Since, &until}, func() {
		p.Until = store.OrZero(until)
		r.queue(name).Pause = new(p)
	})
}

func (r *reader) addOthers(row pgx.Row) error {
	s := &r.snapshot
	var templates, deadLetters, events, sending, sent int
	var oldest float64
	var countedTo *time.Time
	err := row.Scan(&s.At, &countedTo, &s.PausedStreams, &templates, &deadLetters, &events, &sending, &sent, &s.Webhooks.Failing, &s.Webhooks.Disabled, &oldest)
	s.CountedTo = store.OrZero(countedTo)
	s.PausedTemplates, s.DeadLetters, s.Events = limited(templates), limited(deadLetters), Backlog{limited(events), seconds(oldest)}
	s.Messages.StuckSending, s.Messages.StuckSent = limited(sending), limited(sent)
	return err
}

func (r *reader) addDeliveries(row pgx.Row) error {
	var due, retrying, rowsRead int
	var oldest float64
	err := row.Scan(&due, &retrying, &rowsRead, &oldest)
	more := rowsRead > maxRows
	r.snapshot.Webhooks.Due = Backlog{Count{due, more}, seconds(oldest)}
	r.snapshot.Webhooks.Retrying = Count{retrying, more}
	return err
}

func (r *reader) addNames(rows pgx.Rows) error {
	var key int16
	var name string
	return store.Each(rows, []any{&key, &name}, func() {
		if key == nameOfQueue {
			r.queuesWithCounters = append(r.queuesWithCounters, name)
		} else {
			r.appsWithCounters = append(r.appsWithCounters, name)
		}
	})
}

// chooseNames puts the queues and senders that are shown by name into the snapshot, and the sums of all other queues
// and senders.
func (r *reader) chooseNames() {
	s := &r.snapshot
	unfinished := func(name string) int { return r.queues[name].Live().N }
	for _, name := range choose(r.queuesWithCounters, r.queues, unfinished) {
		s.Queues = append(s.Queues, *r.queue(name))
		delete(r.queues, name)
	}
	for _, q := range r.queues {
		s.OtherQueues.Scheduled = s.OtherQueues.Scheduled.add(q.Scheduled)
		if q.Pause != nil {
			q.Pending.Oldest = 0
		}
		s.OtherQueues.Pending = s.OtherQueues.Pending.add(q.Pending)
		s.OtherQueues.Retries = s.OtherQueues.Retries.add(q.Retries)
		s.OtherQueues.Processing = s.OtherQueues.Processing.add(q.Processing)
		s.OtherQueues.Held = s.OtherQueues.Held.add(q.Held)
	}
	processing := func(app string) int { return r.senders[app].Processing.N }
	for _, app := range choose(r.appsWithCounters, r.senders, processing) {
		s.Senders = append(s.Senders, *r.sender(app))
		delete(r.senders, app)
	}
	for _, sender := range r.senders {
		s.OtherApps.Processing = s.OtherApps.Processing.add(sender.Processing)
	}
}

// choose returns at most MaxNames names to show, in alphabetical order: the names with counters, and if fewer than
// MaxNames have counters, the largest of the other names.
func choose[T any](withCounters []string, byName map[string]*T, size func(name string) int) []string {
	others := slices.Collect(maps.Keys(byName))
	others = slices.DeleteFunc(others, func(name string) bool { return slices.Contains(withCounters, name) })
	slices.SortFunc(others, func(a, b string) int { return cmp.Or(size(b)-size(a), cmp.Compare(a, b)) })
	names := slices.Concat(withCounters, others)
	names = names[:min(len(names), MaxNames)]
	slices.Sort(names)
	return names
}

// readTotals reads the counters of the chosen queues and senders.
func (r *reader) readTotals(ctx context.Context, tx pgx.Tx) error {
	s := &r.snapshot
	queues, senders := map[string]*Queue{"": &s.OtherQueues}, map[string]*Sender{"": &s.OtherApps}
	for i := range s.Queues {
		queues[s.Queues[i].Name] = &s.Queues[i]
	}
	for i := range s.Senders {
		senders[s.Senders[i].App] = &s.Senders[i]
	}
	queueNames := store.Column(s.Queues, func(q Queue) string { return q.Name })
	apps := store.Column(s.Senders, func(s Sender) string { return s.App })
	var batch pgx.Batch
	batch.Queue(totalsSQL, queueNames, apps).Query(func(rows pgx.Rows) error {
		var c counter
		var last *time.Time
		return store.Each(rows, []any{&c.kind, &c.key, &c.name, &c.n, &c.seconds, &last}, func() {
			c.last = store.OrZero(last)
			switch {
			case c.kind == kindDeliveries:
				c.addToWebhooks(&s.Webhooks)
			case c.kind < kindDeliveries:
				c.addToTotals(&queues[c.name].Totals)
			default:
				c.addToSender(senders[c.name])
			}
		})
	})
	start := s.At.Truncate(interval).Add(-(Intervals - 1) * interval)
	batch.Queue(throughputSQL, queueNames, start.Add(-1)).Query(func(rows pgx.Rows) error {
		var name string
		var t Throughput
		return store.Each(rows, []any{&t.Since, &name, &t.Submitted, &t.Succeeded, &t.Failed}, func() {
			queues[name].addThroughput(start, t)
		})
	})
	return tx.SendBatch(ctx, &batch).Close()
}

// addThroughput adds t to the Intervals that begin at start.
func (q *Queue) addThroughput(start time.Time, t Throughput) {
	i := int(t.Since.Sub(start) / interval)
	if i < 0 || i >= Intervals {
		return
	}
	if q.Throughput == nil {
		q.Throughput = make([]Throughput, Intervals)
		for i := range q.Throughput {
			q.Throughput[i].Since = start.Add(time.Duration(i) * interval)
		}
	}
	t.Since = q.Throughput[i].Since
	q.Throughput[i] = t
}

// limited returns the Count for n rows. n is from a query that stops counting at maxRows+1.
func limited(n int) Count { return Count{min(n, maxRows), n > maxRows} }

func seconds(s float64) time.Duration { return time.Duration(max(s, 0) * float64(time.Second)) }
