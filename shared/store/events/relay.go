package events

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/alerts"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// eventCallers lists, as e, each pair of stream and caller that has waiting events, with next_at and the number of events
// of its earliest row: one index probe for each pair.
const eventCallers = `e (stream, caller_id, next_at, events) as (
    (select stream, caller_id, next_at, events from event_outbox order by stream, caller_id, next_at, id limit 1)
    union all
    select n.* from e cross join lateral (
        select o.stream, o.caller_id, o.next_at, o.events from event_outbox o
        where (o.stream, o.caller_id) > (e.stream, e.caller_id)
        order by o.stream, o.caller_id, o.next_at, o.id limit 1
    ) n
)`

// lockEventsSQL locks the first due rows of each stream and caller, by next_at and then by id, and reads the content of
// their events. Rows that another relay has locked are skipped.
//
// The $1 events of a batch are divided equally among streams, and each stream's part among its callers. A caller gets as
// many whole rows as its part has room for, and at least one. If the first rows of all callers together exceed the stream's
// part, some callers are chosen at random. A stream with a row in stream_pauses (its pause has ended, or the broker was
// unavailable) gets one row.
//
// In a stream, the first event of each caller comes before all second events, and so on, and among these the events of
// small rows come first. So no caller's backlog delays another caller. The content of a stream's events is limited to about
// 4 MiB: beyond that, the last events of each caller are left out. room = 0 means that there may be more events.
//
// The events of the stream $2 are left out.
//
// The result of a task is returned only while the task still has the outcome that the event reports.
const lockEventsSQL = `
with recursive ` + eventCallers + `, due as materialized (
    select s.*, p.failures, random() as chance from e s` + store.JoinStreamPauses + `where s.next_at <= now() and s.stream <> $2 and ` + store.StreamIsOpen + `
), picked as materialized (
    select *, greatest(part / count(*) over (partition by stream), 1) as room from (
        select due.*, $1 / (select count(distinct stream) from due) as part,
            sum(events) over (partition by stream order by chance) - events as ahead,
            row_number() over (partition by stream order by chance) as caller_no
        from due
    ) d where caller_no = 1 or failures is null and ahead < part
), found as materialized (
    select fitting.*, picked.failures, picked.chance, fitting.some_left or picked.failures is not null or (select count(*) from picked) < (select count(*) from due) as more
    from picked cross join lateral (
        select *, bool_or(not fits) over () as some_left from (
            select id, events_so_far, row_no = 1 or failures is null and events_so_far <= room as fits from (
                select id, row_number() over in_order as row_no, sum(events) over in_order as events_so_far from (
                    select id, next_at, events from event_outbox
                    where event_outbox.stream = picked.stream and event_outbox.caller_id = picked.caller_id and next_at <= now()
                    order by next_at, id
                    limit room + 1
                ) earliest window in_order as (order by next_at, id)
            ) numbered
        ) checked
    ) fitting
), o as materialized (
    select locked.*, f.events_so_far - locked.events as events_before, f.chance, f.failures, case when f.more then 0 else 2147483647 end as room
    from found f cross join lateral (
        select id, kind, reason, ids, created_at, stream, events from event_outbox
        where event_outbox.id = f.id and next_at <= now()
        for update skip locked
    ) locked
    where f.fits
)
select seq, kind, reason, at, subject, source, metadata, ` + tasks.AttemptNames + `, sent_at, url, disabled_reason, failing_since,
    "from", client_msg_id, accept_seq, alert, stream, case when cut then 0 else room end as room, failures, ordinal, events
from (select *, bool_or(bytes_before >= 4 << 20) over (partition by stream) as cut from (select *,
    sum(octet_length(concat(source, metadata, ` + tasks.AttemptNames + `, url, disabled_reason, "from", client_msg_id, alert)))
        over (partition by stream order by turn, chance rows between unbounded preceding and 1 preceding) as bytes_before from (
select o.id as seq, o.kind, o.reason, o.created_at as at, i.id as subject, t.source, t.metadata,
    ` + tasks.AttemptNames + `, d.sent_at, w.url, w.disabled_reason, w.failing_since,
    coalesce(m.sender, a.sender) as "from", coalesce(m.client_msg_id, a.client_msg_id) as client_msg_id, coalesce(a.accept_seq, a.purged_seq, m.accept_seq) as accept_seq,
    to_jsonb(x)::text as alert, o.stream, o.room, o.failures, o.events_before + i.ordinal as turn, o.chance, i.ordinal, o.events
from o cross join lateral unnest(o.ids) with ordinality as i (id, ordinal)
left join lateral (
    select source, metadata from tasks where tasks.id = i.id and o.kind like 'task.%'
    union all
    select source, metadata from archived_tasks where archived_tasks.id = i.id and o.kind like 'task.%'
    offset 0
) t on true
left join lateral (
    select ` + tasks.DoneNames + ` from task_done where task_done.id = i.id and o.kind like 'task.%'
    union all
    select ` + tasks.DoneNames + ` from archived_tasks where archived_tasks.id = i.id and o.kind like 'task.%'
    offset 0
) d
    on o.kind = case d.status when 2 then 'task.succeeded' else 'task.failed' end and d.reason = o.reason
left join lateral (
    select sender, client_msg_id, accept_seq from messages where messages.id = i.id and o.kind like 'message.%'
    union all
    select sender, client_msg_id, accept_seq from archived_messages where archived_messages.id = i.id and o.kind like 'message.%'
    offset 0
) m on true
left join lateral (select * from accepted_messages where accepted_messages.id = i.id and o.kind like 'message.%' offset 0) a on true
left join webhook_endpoints w on o.kind = '` + store.KindWebhookDisabled + `' and w.id = i.id
left join lateral (select * from alerts where alerts.id = i.id and o.kind like 'alert.%' offset 0) x on true
) event) event) event
where bytes_before is null or bytes_before < 4 << 20
order by stream, turn, events, seq`

// Due is one event to publish.
type Due struct {
	Seq      int64           // grows with each event of one subject
	Kind     string          // task.<state>, webhook.disabled, message.saved, message.rejected, alert.raised or alert.cleared
	Subject  task.ID         // the task, the endpoint, the message or the alert
	At       time.Time       // when it happened
	Reason   task.Reason     // of a failed task
	Source   string          // of a task, as it was submitted
	Metadata json.RawMessage // of a task, as it was submitted; JSON, nil = none

	task.Attempt // of a final task that still has the outcome of the event

	// Of an endpoint that was disabled.
	URL            string
	DisabledReason string
	FailingSince   *time.Time

	// Of a message.
	From        string
	ClientMsgID string
	AcceptSeq   int64 // the message's sequence number in the stream of accepted messages; 0 = it was saved without this stream

	Alert *alerts.Alert // as it was at the time of the event; nil for events of other kinds

	stream    string
	ordinal   int // of the event in its row of event_outbox, from 1
	rowEvents int // number of events of that row
}

// eventRow is a row of lockEventsSQL.
type eventRow struct {
	Due
	Alert    *string // JSON
	Stream   string
	Room     int
	Failures *int32
	Ordinal  int
	Events   int
}

// ID identifies the event. It stays the same when the event is published again.
func (e *Due) ID() string { return e.Subject.String() + "-" + strconv.FormatInt(e.Seq, 10) }

func lockEvents(ctx context.Context, tx pgx.Tx, limit int, skipStream string) (due []Due, streams store.StreamStates, err error) {
	rows, err := store.QueryRows(ctx, tx, store.RowByName[eventRow](), lockEventsSQL, limit, skipStream)
	streams = store.StreamStates{}
	for _, row := range rows {
		e := row.Due
		e.stream, e.ordinal, e.rowEvents = row.Stream, row.Ordinal, row.Events
		e.Alert = alerts.AtEvent(row.Alert, e.Kind)
		if row.Ordinal == 1 {
			streams.AddRow(e.stream, 0, row.Room, row.Failures)
		}
		due = append(due, e)
	}
	return due, streams, err
}

// anyEventSQL lets an idle relay skip the transaction. It returns whether events are due for streams other than $1, and for $1.
const anyEventSQL = `
with recursive ` + eventCallers + `
select coalesce(bool_or(s.stream <> $1), false), coalesce(bool_or(s.stream = $1), false)
from e s` + store.JoinStreamPauses + `where s.next_at <= now() and ` + store.StreamIsOpen

const deleteEventsSQL = `delete from event_outbox where id = any($1::bigint[])`

// keepEventsSQL keeps the ids $2 of a row, and the ids after its first $4, which were not read. If $3 > 0, it delays the
// row by $3 seconds.
const keepEventsSQL = `
update event_outbox set ids = $2 || ids[$4 + 1:], next_at = case when $3 > 0 then now() + make_interval(secs => $3) else next_at end where id = $1`

// Relay locks about limit due events (see lockEventsSQL), calls publish, and deletes the accepted events, all in one
// transaction. publish must return one result per event, in order, within 3 s. An event with the result Unavailable
// stays, however often it was tried. A refused event becomes a dead letter. Package store describes how unavailable
// streams are paused.
//
// If publish fails, the process dies or the transaction is not committed, the same events are published again under the
// same ids, by which receivers recognise them.
//
// Relay leaves out the events of the stream skipStream; "" = of no stream. If events of this stream are due, More is true.
func (st *Store) Relay(ctx context.Context, skipStream string, limit int, publish func(ctx context.Context, due []Due) ([]msg.Result, error)) (relayed store.Relayed, err error) {
	var othersDue, skippedDue bool
	if err := st.db.Hot.QueryRow(ctx, anyEventSQL, skipStream).Scan(&othersDue, &skippedDue); err != nil || !othersDue {
		return store.Relayed{More: skippedDue}, store.Wrap("relay events", err)
	}
	err = pgx.BeginFunc(ctx, st.db.Hot, func(tx pgx.Tx) error {
		due, streams, err := lockEvents(ctx, tx, limit, skipStream)
		if err != nil || len(due) == 0 {
			return err
		}
		results, err := publish(ctx, due)
		if err == nil && len(results) != len(due) {
			err = fmt.Errorf("%d results for %d events", len(results), len(due))
		}
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.SettleTimeout)
		defer cancel()
		var batch pgx.Batch
		settleEvents(&batch, due, results, &relayed)
		for i, e := range due {
			streams.AddResult(e.stream, results[i])
		}
		streams.Queue(&batch, &relayed)
		return tx.SendBatch(ctx, &batch).Close()
	})
	relayed.More = relayed.More || skippedDue
	return relayed, store.Wrap("relay events", err)
}

// publishedRow is a row of event_outbox after its events, or the first of them, were given to publish.
type publishedRow struct {
	total     int           // number of events of the row
	read      int           // how many of the row's first events were given to publish
	remaining []task.ID     // subjects of the events that were given to publish and stay
	pause     time.Duration // delay of the row, if an event was Unavailable with the scope OneMessage
}

// settleEvents adds the statements that delete or keep the rows of the published events. An unchanged row costs no
// statement.
func settleEvents(batch *pgx.Batch, due []Due, results []msg.Result, relayed *store.Relayed) {
	rows := map[int64]*publishedRow{}
	for i, e := range due {
		row := rows[e.Seq]
		if row == nil {
			row = &publishedRow{total: e.rowEvents}
			rows[e.Seq] = row
		}
		row.read = max(row.read, e.ordinal)
		switch r := results[i]; r.Outcome {
		case msg.Unavailable:
			row.remaining = append(row.remaining, e.Subject)
			if r.Scope == msg.OneMessage {
				row.pause = msg.UnavailablePause(time.Since(e.At))
			}
		case msg.Refused:
			store.QueueDeadLetter(batch, store.DeadLetter{
				Function: "relay", EventID: e.ID(), EventType: "sendonce." + e.Kind + ".v1", Attempts: 1, Reason: r.Reason,
				Event: store.MustJSON(map[string]any{"subject": e.Subject, "result": e.Result, "error_code": e.ErrorCode, "metadata": e.Metadata}),
			})
		}
	}
	var toDelete []int64
	for _, seq := range slices.Sorted(maps.Keys(rows)) {
		switch row := rows[seq]; {
		case len(row.remaining) == 0 && row.read == row.total:
			toDelete = append(toDelete, seq)
		case len(row.remaining) < row.read || row.pause > 0:
			batch.Queue(keepEventsSQL, seq, row.remaining, row.pause.Seconds(), row.read)
			if row.pause > 0 {
				relayed.NextTries = append(relayed.NextTries, time.Now().Add(row.pause))
			}
		}
	}
	if len(toDelete) > 0 {
		batch.Queue(deleteEventsSQL, toDelete)
	}
}

// nextRelaySQL returns when the next message or event is due for the broker. A paused stream is due when its pause ends.
// Rows that are due already count too: a relay that has locked them may die.
const nextRelaySQL = messages.DueStreams + `, ` + eventCallers + `
select least(
    (select min(greatest(s.next_at, p.until)) from s` + store.JoinStreamPauses + `),
    (select min(greatest(s.next_at, p.until, now())) from e s` + store.JoinStreamPauses + `))`

// NextRelay returns when the next message or event is due for the broker; zero = there is none.
func (st *Store) NextRelay(ctx context.Context) (time.Time, error) {
	at, err := st.db.QueryTime(ctx, nextRelaySQL)
	return at, store.Wrap("next relay", err)
}

const pausedSQL = `select stream from stream_pauses where failures > 0 order by stream`

// PausedStreams returns the streams that are paused, or whose pause has ended and that have accepted nothing since.
func (st *Store) PausedStreams(ctx context.Context) ([]string, error) {
	names, err := store.QueryRows(ctx, st.db.Hot, pgx.RowTo[string], pausedSQL)
	return names, store.Wrap("list paused streams", err)
}
