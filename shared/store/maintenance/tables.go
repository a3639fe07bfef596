package maintenance

import (
	"time"

	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
)

// archiveRows limits the rows that one transaction locks, since a report may wait for one of them.
const archiveRows = 500

// archiveCutoffs has the times before which rows are archived.
type archiveCutoffs struct {
	moved, deleted time.Time // zero = no rows are moved or deleted
	closed         time.Time // the end of the last closed day
	waiting        time.Time // when the oldest event that waits to be published was written; now if none waits
}

// archivable is a table whose old rows are archived, with the statements for it.
type archivable struct {
	table   string
	deletes bool   // old rows are deleted; otherwise they move to the table's archive
	first   string // less than every key
	rows    int    // at most, in one page and one transaction

	// page returns up to $4 rows after the row that finished at $1 and has the key $2: the key as text, when the row
	// finished, and whether it may be archived with the cutoff $3. Rows that never finish, such as operator actions,
	// count as finished when they were written.
	page string
	// archive archives the rows with the keys $1 that finished before $2, except locked rows, and returns their number.
	// It checks the rows again, as they may have changed since the page was read.
	archive string
	// lock locks the rows with the keys $1 that finished before $2, except rows that are locked already, and returns their
	// keys for archive; "" = archive locks them itself. Messages need lock, since a transaction that has locked a message
	// may add receipts to it: only a statement after lock sees all these receipts.
	lock string

	cutoff func(archiveCutoffs) time.Time
}

func moved(c archiveCutoffs) time.Time   { return c.moved }
func deleted(c archiveCutoffs) time.Time { return c.deleted }

// movedIfCounted excludes the days that are not closed, because statistics still count their rows.
func movedIfCounted(c archiveCutoffs) time.Time { return earlier(c.moved, c.closed) }

// deletedIfPublished excludes rows that finished after the oldest waiting event was written: their own events may wait
// too, and these are made from the rows.
func deletedIfPublished(c archiveCutoffs) time.Time { return earlier(c.deleted, c.waiting) }

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}
	return a
}

const (
	firstID     = "00000000-0000-0000-0000-000000000000"
	firstNumber = "0"
)

// archivables are in the order in which they are archived: subscribe messages after their tasks, events after their
// deliveries.
var archivables = []archivable{
	{table: "tasks", first: firstID, rows: archiveRows, page: pageTasksSQL, archive: archiveTasksSQL, cutoff: movedIfCounted},
	{table: "messages", first: firstID, rows: 100, page: pageMessagesSQL, lock: lockOldMessagesSQL, archive: archiveMessagesSQL, cutoff: moved},
	{table: "subscribe_message_logs", first: firstNumber, rows: 100, page: pageSubscribeLogsSQL, archive: archiveSubscribeLogsSQL, cutoff: movedIfCounted},
	{table: "operator_actions", first: firstNumber, rows: archiveRows, page: pageActionsSQL, archive: archiveActionsSQL, cutoff: moved},
	{table: "webhook_deliveries", deletes: true, first: firstID, rows: archiveRows, page: pageDeliveriesSQL, archive: deleteOldDeliveriesSQL, cutoff: deleted},
	{table: "webhook_events", deletes: true, first: "", rows: archiveRows, page: pageEventsSQL, archive: deleteOldEventsSQL, cutoff: deleted},
	{table: "bulk_changes", deletes: true, first: firstID, rows: archiveRows, page: pageBulkSQL, archive: deleteOldBulkSQL, cutoff: deleted},
	{table: "alerts", deletes: true, first: firstID, rows: archiveRows, page: pageAlertsSQL, archive: deleteOldAlertsSQL, cutoff: deletedIfPublished},
	{table: "dead_letters", deletes: true, first: firstNumber, rows: archiveRows, page: pagePanicsSQL, archive: deleteOldPanicsSQL, cutoff: deleted},
}

// pageTasksSQL reads by id, in the order of creation: a b-tree index on reported_at would cost more writes than it is
// worth. An id begins with the milliseconds of its creation. A task that was created after the cutoff $3 is not old, so
// it is not read.
const pageTasksSQL = `
select id::text as key, $1::timestamptz, reported_at < $3::timestamptz
from task_done
where id > $2::text::uuid
    and id < rpad(lpad(to_hex(greatest(extract(epoch from $3::timestamptz) * 1000, 0)::bigint), 12, '0'), 32, '0')::uuid
order by id
limit $4`

const archiveTasksSQL = `
with c as materialized (
    select id from task_done where id = any($1::text[]::uuid[]) and reported_at < $2 for update skip locked
), d as (
    delete from task_done where id = any(array(select id from c)) returning *
), t as (
    delete from tasks where id = any(array(select id from c)) returning *
), a as (
    insert into archived_tasks (` + tasks.BodyNames + `, ` + tasks.DoneNames + `)
    select ` + tasks.BodyNames + `, ` + tasks.DoneNames + ` from t join d using (id)
    returning id
)
select count(*) from a`

// pageFinished, the name of a table, a condition and afterFinished make a statement for a page of rows in the order of
// their finished_at. pageCreated and afterCreated are the same for rows with a numeric id that never finish.
const (
	pageFinished = `
select id::text as key, finished_at, true from `
	afterFinished = ` (finished_at, id) > ($1::timestamptz, $2::text::uuid) and finished_at < $3
order by finished_at, id
limit $4`
	pageCreated = `
select id::text as key, created_at, true from `
	afterCreated = ` (created_at, id) > ($1::timestamptz, $2::text::bigint) and created_at < $3
order by created_at, id
limit $4`
)

const pageMessagesSQL = pageFinished + `message_done where` + afterFinished

const lockOldMessagesSQL = `
select id::text from message_done where id = any($1::text[]::uuid[]) and finished_at < $2 for update skip locked`

const archiveMessagesSQL = `
with d as (
    delete from message_done where id = any($1::text[]::uuid[]) and finished_at < $2 returning *
), r as (
    delete from message_receipts where message_id = any($1::text[]::uuid[]) returning *
), m as (
    delete from messages where id = any($1::text[]::uuid[]) returning *
), a as (
    insert into archived_messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, exchange_name, routing_key,
        type, data, sent_at, confirm, max_sends, expected_receipts, created_at, accept_seq, accepted_at, producer, status, abandoned,
        remaining_sends, send_no, epoch, finished_at, finished_by, last_error, delivered_at, receipts, confirm_token)
    select m.id, m.call_id, m.caller_id, m.sender, m.client_msg_id, m.fingerprint, m.kind, m.destination, m.exchange_name, m.routing_key,
        m.type, m.data, m.sent_at, m.confirm, m.max_sends, m.expected_receipts, m.created_at, m.accept_seq, m.accepted_at, m.producer, d.status, d.abandoned,
        d.remaining_sends, d.send_no, d.epoch, d.finished_at, d.finished_by, d.last_error, d.delivered_at, coalesce(g.receipts, '[]'), m.confirm_token
    from m join d on d.id = m.id
    left join (
        select message_id, jsonb_agg(` + messages.ReceiptJSON + ` order by r.confirmed_at, r.consumer) as receipts from r group by message_id
    ) g on g.message_id = m.id
    returning id
)
select count(*) from a`

// maxSends is a limit: a subscribe message with more sends is not archived. A failed message can be sent again any
// number of times, and each send takes time to check and to move.
const maxSends = "100"

// pageSubscribeLogsSQL also checks that send_time is before $3, because the totals count the message on the day of its
// send_time; that the message has at most maxSends sends; and that all its tasks in the main tables ended before $3, so
// that they are archived before the message.
const pageSubscribeLogsSQL = `
select g.id::text as key, g.updated_at, g.send_time < $3
    and not exists (select from subscribe_message_sends where log_id = g.id offset ` + maxSends + `)
    and not exists (
        select from (select task_id from subscribe_message_sends where log_id = g.id limit ` + maxSends + `) s join tasks t on t.id = s.task_id
        where not exists (select from task_done d where d.id = t.id and d.reported_at < $3 offset 0) offset 0)
from subscribe_message_logs g
where g.send_status <> 0 and (g.updated_at, g.id) > ($1::timestamptz, $2::text::bigint) and g.updated_at < $3
order by g.updated_at, g.id
limit $4`

// archiveSubscribeLogsSQL leaves out messages that still have a task in the main tables: a late report on the task
// would change the message.
const archiveSubscribeLogsSQL = `
with c as materialized (
    select g.id from subscribe_message_logs g
    where g.id = any($1::text[]::bigint[]) and g.send_status <> 0 and greatest(g.updated_at, g.send_time) < $2
        and not exists (select from subscribe_message_sends s join tasks t on t.id = s.task_id where s.log_id = g.id offset 0)
    for update skip locked
), s as (
    delete from subscribe_message_sends where log_id = any(array(select id from c)) returning *
), g as (
    delete from subscribe_message_logs where id = any(array(select id from c)) returning *
), h as (
    insert into archived_subscribe_message_sends (` + subscribe.SendColumnNames + `) select ` + subscribe.SendColumnNames + ` from s
), a as (
    insert into archived_subscribe_message_logs (` + subscribe.LogColumnNames + `) select ` + subscribe.LogColumnNames + ` from g
    returning id
)
select count(*) from a`

const pageActionsSQL = pageCreated + `operator_actions where` + afterCreated

const archiveActionsSQL = `
with c as materialized (
    select id from operator_actions where id = any($1::text[]::bigint[]) and created_at < $2 for update skip locked
), o as (
    delete from operator_actions where id = any(array(select id from c)) returning *
), a as (
    insert into archived_operator_actions (id, caller_id, caller_name, request_id, action, subject, reason, before, after, created_at)
    select id, caller_id, caller_name, request_id, action, subject, reason, before, after, created_at from o
    returning id
)
select count(*) from a`

// thenDeleteFrom, the name of a table and countDeleted end a statement that begins with a CTE c of the ids of rows of
// this table: it deletes these rows, except locked ones, and returns their number.
const (
	thenDeleteFrom = `
    for update skip locked
), d as (
    delete from `
	countDeleted = ` where id = any(array(select id from c)) returning id
)
select count(*) from d`
)

const pageDeliveriesSQL = pageFinished + `webhook_deliveries where state <> 0 and` + afterFinished

const deleteOldDeliveriesSQL = `
with c as materialized (
    select id from webhook_deliveries where id = any($1::text[]::uuid[]) and state <> 0 and finished_at < $2` + thenDeleteFrom + `webhook_deliveries` + countDeleted

// pageEventsSQL also checks that each delivery of the event finished before $3, so that it is deleted before the event.
const pageEventsSQL = `
select e.id as key, e.recorded_at, not exists (
    select from webhook_deliveries w where w.event_id = e.id and (w.state = 0 or w.finished_at >= $3) offset 0)
from webhook_events e
where (e.recorded_at, e.id) > ($1::timestamptz, $2::text) and e.recorded_at < $3
order by e.recorded_at, e.id
limit $4`

// deleteOldEventsSQL must keep an event that insertDeliveriesSQL of package webhooks records again, although the new
// deliveries may not be in the snapshot of the deletion. insertDeliveriesSQL locks the event and renews recorded_at. So
// this statement skips locked events, and Postgres checks recorded_at again after it has locked an event.
const deleteOldEventsSQL = `
with c as materialized (
    select e.id from webhook_events e where e.id = any($1::text[]) and e.recorded_at < $2
        and not exists (select from webhook_deliveries w where w.event_id = e.id offset 0)` + thenDeleteFrom + `webhook_events` + countDeleted

const pageBulkSQL = pageFinished + `bulk_changes where finished_at is not null and` + afterFinished

const deleteOldBulkSQL = `
with c as materialized (
    select id from bulk_changes where id = any($1::text[]::uuid[]) and finished_at < $2` + thenDeleteFrom + `bulk_changes` + countDeleted

const pageAlertsSQL = `
select id::text as key, cleared_at, true
from alerts
where cleared_at is not null and (cleared_at, id) > ($1::timestamptz, $2::text::uuid) and cleared_at < $3
order by cleared_at, id
limit $4`

const deleteOldAlertsSQL = `
with c as materialized (
    select id from alerts where id = any($1::text[]::uuid[]) and cleared_at < $2` + thenDeleteFrom + `alerts` + countDeleted

// pagePanicsSQL finds the rows that only count the panics of a function over an event (dead is false). Rows of dead
// events wait for an operator.
const pagePanicsSQL = pageCreated + `dead_letters where not dead and` + afterCreated

const deleteOldPanicsSQL = `
with c as materialized (
    select id from dead_letters where id = any($1::text[]::bigint[]) and not dead and created_at < $2` + thenDeleteFrom + `dead_letters` + countDeleted
