package maintenance_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	msg "github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/events"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

// insertOldAndOtherRows inserts old rows into each table that the archive removes rows from, and rows that must stay because they
// are recent, unfinished or dead events, or because they are events of unfinished deliveries.
func insertOldAndOtherRows(t *testing.T, db *storetest.DB) {
	t.Helper()
	db.MustSettleOldBooking(t, 1, task.SentOK)
	m := storetest.Message("k")
	db.SaveReceived(t, m, storetest.Message("young"))
	db.Exec(t, `update message_done set finished_at = now() - interval '100 days' where id = $1`, m.ID)
	for _, sql := range []string{
		`insert into operator_actions (caller_id, caller_name, request_id, action, subject, reason, before, after, created_at)
			select 1, 'ann', 'r', 'task.retry', g::text, 'because', '{"a": 1}', '{"a": 2}', now() - interval '100 days' * (g % 2) from generate_series(1, 4) g`,
		`insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, state, next_at, finished_at, created_at)
			select gen_random_uuid(), g::text, gen_random_uuid(), 0, 't', gen_random_uuid(), 'u', case when g < 3 then 0 else g - 2 end, case when g < 3 then now() end,
				case when g > 2 then now() - interval '100 days' end, now() - interval '100 days' from generate_series(1, 4) g`,
		`insert into webhook_events (id, payload, recorded_at)
			select g::text, '{}', now() - interval '100 days' * (g % 6) from generate_series(1, 6) g`,
		`insert into alerts (id, kind, queue, value, threshold, since, cleared_at, cleared_value)
			select gen_random_uuid(), 'backlog', g::text, 1, 1, now() - interval '100 days', case when g < 4 then now() - interval '100 days' end, case when g < 4 then 0 end
			from generate_series(1, 4) g`,
		`insert into dead_letters (function, event_id, event_type, event, reason, attempts, dead, created_at)
			select 'save', g::text, '', '', '', 1, g > 4, now() - interval '100 days' from generate_series(1, 5) g`,
		`insert into bulk_changes (id, caller_id, caller_name, request_id, action, filter, reason, matched, finished_at)
			select gen_random_uuid(), 0, 'ann', 'r', 'cancel', '{}', 'because', 1, at from unnest(array[now() - interval '101 days', now(), null]) at`,
	} {
		db.Exec(t, sql)
	}
}

func TestOldRowsAreRemovedFromEveryTable(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 30))
	insertOldAndOtherRows(t, db)
	want := map[string]int{
		"tasks": 1, "messages": 1, "subscribe_message_logs": 1, "operator_actions": 2, "webhook_deliveries": 2, "webhook_events": 3, "alerts": 3, "dead_letters": 4, "bulk_changes": 1,
	}
	require.Len(t, maintenance.Pages(), len(want))
	require.Equal(t, want, db.MustArchive(t, maintenance.ArchiveRun{DryRun: true}), "a dry run counts the rows that a run removes")
	require.Equal(t, want, db.MustArchive(t, maintenance.ArchiveRun{}))
	require.Empty(t, db.MustArchive(t, maintenance.ArchiveRun{}))
	require.Equal(t, 2, db.Count(t, `select count(*) from archived_operator_actions
		where (caller_name, reason, before, after) = ('ann', 'because', '{"a": 1}', '{"a": 2}')`))
	require.Equal(t, 2, db.Count(t, `select count(*) from operator_actions`))
	require.Equal(t, 2, db.Count(t, `select count(*) from webhook_deliveries where state = 0`))
	require.Equal(t, 3, db.Count(t, `select count(*) from webhook_events where id in ('1', '2', '6')`), "events of pending deliveries, and a recent event")
	require.Equal(t, 1, db.Count(t, `select count(*) from alerts where cleared_at is null`))
	require.Equal(t, 1, db.Count(t, `select count(*) from dead_letters where dead`))
}

func TestRetentionDaysApplyToMovedAndDeletedRows(t *testing.T) {
	t.Parallel()
	moved := map[string]int{"tasks": 1, "messages": 1, "subscribe_message_logs": 1, "operator_actions": 2}
	moves := storetest.Open(t, storetest.RetentionDays(90, 0))
	insertOldAndOtherRows(t, moves)
	require.Equal(t, moved, moves.MustArchive(t, maintenance.ArchiveRun{}))
	deletes := storetest.Open(t, storetest.RetentionDays(0, 30))
	insertOldAndOtherRows(t, deletes)
	require.Equal(t, map[string]int{"webhook_deliveries": 2, "webhook_events": 3, "alerts": 3, "dead_letters": 4, "bulk_changes": 1}, deletes.MustArchive(t, maintenance.ArchiveRun{}))
	require.Empty(t, deletes.MustArchive(t, maintenance.ArchiveRun{Before: time.Now().AddDate(0, 0, -150)}))
	require.Equal(t, moved, deletes.MustArchive(t, maintenance.ArchiveRun{Before: time.Now().AddDate(1, 0, 0)}), "Before overrides the setting 0, but rows of the last 24 hours stay")
}

func TestEventThatIsNeverDueDoesNotKeepOldAlerts(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 30))
	insertOldAndOtherRows(t, db)
	db.Exec(t, `insert into event_outbox (kind, ids, created_at, next_at) values ('alert.cleared', array[gen_random_uuid()], now() - interval '101 days', '9999-01-01 00:00:00+00')`)
	require.Equal(t, 3, db.MustArchive(t, maintenance.ArchiveRun{})["alerts"])
}

// Two events wait for months to be published. Meanwhile all rows except the alerts are archived; the event of the archived task is
// complete nevertheless. After the events are published, the alerts are deleted too; the event of a deleted alert still finds its receivers.
func TestEventOutlivesTheRetentionOfItsSubject(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 30))
	insertOldAndOtherRows(t, db)
	db.Exec(t, `update tasks set source = 'shop'`)
	db.Exec(t, `insert into event_outbox (kind, ids, created_at) select 'task.succeeded', array[id], now() - interval '101 days' from task_done`)
	db.Exec(t, `insert into event_outbox (kind, ids, created_at) select 'alert.cleared', array[id], now() - interval '101 days' from alerts where queue = '1'`)
	removed := db.MustArchive(t, maintenance.ArchiveRun{})
	require.Zero(t, removed["alerts"], "the relay makes the event from the row of the alert")
	delete(removed, "alerts")
	require.Len(t, removed, len(maintenance.Pages())-1)
	db.MustAddEndpoint(t, 0, "https://ops.example", "alert.cleared")
	var sources, queues []string
	var alert task.ID
	_, err := db.Events.Relay(t.Context(), "", 100, func(_ context.Context, due []events.Due) ([]msg.Result, error) {
		for _, e := range due {
			if e.Alert == nil {
				sources = append(sources, e.Source)
				require.NotNil(t, e.SentAt, "the event has the result, too")
			} else {
				queues, alert = append(queues, e.Alert.Queue), e.Subject
			}
		}
		return make([]msg.Result, len(due)), nil
	})
	require.NoError(t, err)
	require.Equal(t, [][]string{{"shop"}, {"1"}}, [][]string{sources, queues})
	require.Equal(t, map[string]int{"alerts": 3}, db.MustArchive(t, maintenance.ArchiveRun{}))
	require.Equal(t, 1, db.MustRecordEvent(t, alert, 1, "alert.cleared"))
}

func TestBadRowDoesNotStopTheArchive(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	const total = maintenance.ArchiveRows + 20
	insertOldTasks(t, db, total, 100)
	db.Exec(t, `
insert into archived_tasks (id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at, status, reason, retry_count, ended, reported_at)
select id, 0, 0, 'default', 5, 3, 0, '', 'taken', now(), 2, 0, 0, 5, now() from (select id from task_done order by id offset 7 limit 1) bad`)
	m := storetest.Message("k")
	db.SaveReceived(t, m)
	db.Exec(t, `update message_done set finished_at = now() - interval '100 days'`)
	rows := map[string]int{}
	var bad []maintenance.UnarchivedRow
	for step, err := range db.Maintenance.Archive(t.Context(), maintenance.ArchiveRun{}) {
		require.NoError(t, err)
		rows[step.Table] += step.Rows
		bad = append(bad, step.Failed...)
	}
	require.Equal(t, []int{total - 1, 1}, []int{rows["tasks"], rows["messages"]})
	require.Len(t, bad, 1)
	require.Equal(t, "tasks", bad[0].Table)
	require.ErrorContains(t, bad[0].Err, "archived_tasks_pkey")
	require.Equal(t, bad[0].Key, storetest.Value[task.ID](t, db, `select id from tasks`).String(), "the whole task stays")
	require.Equal(t, 1, db.Count(t, `select count(*) from task_done`))

	var failed []maintenance.UnarchivedRow
	for more := true; more; {
		var done maintenance.Archived
		var err error
		done, more, err = db.Maintenance.Run(t.Context())
		require.NoError(t, err)
		failed = append(failed, done.Failed...)
	}
	require.Len(t, failed, 1, "each run reports the bad row again")
}

// A caller may send a failed message again any number of times.
func TestMessageWithVeryManySendsDoesNotStopTheArchive(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	many, other := db.MustSettleOldBooking(t, 1, task.SentFailed), db.MustSettleOldBooking(t, 2, task.SentOK)
	db.Exec(t, `insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data)
		select gen_random_uuid(), $1, 'x', 'o', '{}' from generate_series(1, 200 * `+maintenance.MaxSends+`)`, many.ID)
	for _, p := range maintenance.Pages() {
		if p.Table == "subscribe_message_logs" {
			blocks := storetest.CountBlocks(t, db.Retention, p.SQL, time.Time{}, p.First, time.Now().AddDate(0, 0, -90), p.Rows)
			require.Less(t, blocks, 2000, "the cost does not grow with the number of sends")
		}
	}
	require.Equal(t, 1, db.MustArchive(t, maintenance.ArchiveRun{})["subscribe_message_logs"])
	require.Equal(t, other.ID, storetest.Value[int64](t, db, `select id from archived_subscribe_message_logs`))
	require.Equal(t, many.ID, storetest.Value[int64](t, db, `select id from subscribe_message_logs`))
}

func TestBadTableDoesNotStopTheArchive(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 30))
	insertOldAndOtherRows(t, db)
	db.Exec(t, `alter table archived_messages rename to away`)
	rows := map[string]int{}
	var last error
	for step, err := range db.Maintenance.Archive(t.Context(), maintenance.ArchiveRun{}) {
		rows[step.Table] += step.Rows
		last = err
	}
	require.ErrorContains(t, last, "archived_messages")
	require.Zero(t, rows["messages"])
	require.Equal(t, []int{1, 1, 2}, []int{rows["tasks"], rows["subscribe_message_logs"], rows["webhook_deliveries"]})
}

// Each step begins after the page of the last step, also if rows of this page were locked and could not be moved.
func TestArchiveContinuesAfterRowsItCannotMove(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, storetest.RetentionDays(90, 0))
	db.Exec(t, `
insert into operator_actions (caller_id, caller_name, request_id, action, subject, created_at)
select 0, 'ann', 'r', 'a', 's', now() - interval '100 days' from generate_series(1, 3 * $1)`, maintenance.ArchiveRows)
	release := db.HoldLock(t, `select from operator_actions where id <= $1 for update`, maintenance.ArchiveRows)
	step := func(from maintenance.ArchivePosition) (next maintenance.ArchivePosition) {
		require.NoError(t, db.Maintenance.RunArchive(t.Context(), maintenance.ArchiveRun{}, from, func(s maintenance.ArchiveStep) (stop bool) {
			next = s.Next()
			return s.Table == "operator_actions"
		}))
		return next
	}
	position := step(maintenance.ArchivePosition{})
	require.Zero(t, db.Count(t, `select count(*) from archived_operator_actions`), "all rows of the first page are locked")
	position = step(position.Reread())
	require.Equal(t, maintenance.ArchiveRows, db.Count(t, `select count(*) from archived_operator_actions`))
	position = step(position.Reread())
	require.Equal(t, 2*maintenance.ArchiveRows, db.Count(t, `select count(*) from archived_operator_actions`))
	release()
	require.Equal(t, map[string]int{"operator_actions": maintenance.ArchiveRows}, db.MustArchive(t, maintenance.ArchiveRun{}), "the next run finds the rest")
	require.Equal(t, "operator_actions", position.Table)
}

const insertManyRowsSQL = `
insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
	select g, g, g, 0, 'shop', g::text, 0, 'a', 'b', '1', true, 5, 1
	from (select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint + n), 12, '0') || '70008' || substr(md5(n::text), 1, 15))::uuid
		from generate_series(1, 10000) n) r (g);
insert into message_done (id, status, abandoned, remaining_sends, send_no, epoch, finished_at)
	select id, 2, false, 4, 1, 1, now() - interval '1 minute' * row_number() over () from messages;
insert into message_receipts (message_id, consumer, send_no) select id, 'c', 1 from message_done;
insert into message_live (id, kind, remaining_sends) select id, 0, 5 from messages;
insert into archived_messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts,
	created_at, status, abandoned, remaining_sends, send_no, epoch, finished_at, receipts)
	select gen_random_uuid(), id, 0, 'shop', 'k', id, 0, 'a', 'b', '1', true, 5, 1, now(), 2, false, 4, 1, 1, now(), '[]' from messages;
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select id, 0, 'wechat', 5, 3, 0, '', 'x' from messages;
insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks;
insert into subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
	send_status, caller_id, task_id, updated_at) select 'x', 't', 'b', seq, 9, 'o', '{}', 1, 0, id, now() - interval '1 minute' * seq from tasks;
insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data) select task_id, id, 'x', 'o', '{}' from subscribe_message_logs;
insert into archived_subscribe_message_logs select id + 1000000, template_id, template_type, 'c', business_id, receiver_user_id, receiver_openid, message_data,
	page_path, 1, now(), 0, '', '', 0, task_id, 0, false, now(), now() from subscribe_message_logs;
insert into archived_subscribe_message_sends select gen_random_uuid(), log_id, template_id, receiver_openid, message_data, null, null, null, now() from subscribe_message_sends;
insert into operator_actions (caller_id, caller_name, request_id, action, subject, created_at)
	select 0, '', '', '', '', now() - interval '1 minute' * g from generate_series(1, 10000) g;
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url, state, next_at, finished_at)
	select id, id::text, id, 1, 'x', id, 'u', 1, null, now() - interval '1 minute' * seq from tasks;
insert into webhook_events (id, payload, recorded_at) select id::text, '{}', now() - interval '1 minute' * seq from tasks;
insert into alerts (id, kind, queue, value, threshold, cleared_at, cleared_value)
	select id, 'backlog', 'q', 1, 1, now() - interval '1 minute' * seq, 0 from tasks;
insert into dead_letters (function, event_id, event_type, event, reason, attempts, dead, created_at)
	select 'f', seq::text, '', '', '', 1, false, now() - interval '1 minute' * seq from tasks`

var archivedTables = []string{
	"messages", "message_done", "message_live", "message_receipts", "archived_messages", "tasks", "task_done", "subscribe_message_logs",
	"subscribe_message_sends", "archived_subscribe_message_logs", "archived_subscribe_message_sends", "operator_actions", "webhook_deliveries", "webhook_events", "alerts",
	"dead_letters",
}

func TestRetentionPlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	const (
		ids, numbers = `array[` + storetest.AnID + `], now() - interval '30 days'`, `array['7'], now() - interval '30 days'`
		pageOfIDs    = `'epoch', ` + storetest.AnID + `, now() - interval '30 days', 500`
		pageOfRows   = `'epoch', '7', now() - interval '30 days', 500`
		businessKey  = `'b', '7', 't', '9'`
	)
	storetest.Plans{
		Fill:   insertManyRowsSQL,
		Tables: archivedTables,
		Args: map[string]string{
			"pageMessagesSQL": pageOfIDs, "lockOldMessagesSQL": ids, "archiveMessagesSQL": ids, "pageSubscribeLogsSQL": pageOfRows, "archiveSubscribeLogsSQL": numbers,
			"pageActionsSQL": pageOfRows, "archiveActionsSQL": numbers, "pageDeliveriesSQL": pageOfIDs, "deleteOldDeliveriesSQL": ids,
			"pageEventsSQL": pageOfRows, "deleteOldEventsSQL": numbers,
			"pageAlertsSQL": pageOfIDs, "deleteOldAlertsSQL": ids, "pagePanicsSQL": pageOfRows, "deleteOldPanicsSQL": numbers,
			"withdrawArchivedSQL": storetest.SomeIDs, "knownArchivedMessagesSQL": storetest.SomeIDs, "archivedMessageSQL": storetest.AnID, "savedBeforeSQL": storetest.SomeIDs,
			"finishedMessagesSQL": storetest.SomeIDs,
			"archivedLogOfSQL":    businessKey + `, 'x', 'o', '{}', ''`, "logSQL": "7", "messageLogSQL": businessKey, "historySQL": "7, 'infinity', " + storetest.AnID + ", 20",
		},
		Index: map[string]string{
			"pageMessagesSQL": "message_done_finished", "pageSubscribeLogsSQL": "subscribe_message_logs_settled", "pageActionsSQL": "operator_actions_created",
			"pageDeliveriesSQL": "webhook_deliveries_finished", "pageEventsSQL": "webhook_events_recorded", "deleteOldEventsSQL": "webhook_events_pkey", "pageAlertsSQL": "alerts_cleared", "pagePanicsSQL": "dead_letters_survived",
			"withdrawArchivedSQL": "archived_messages_pkey", "archivedLogOfSQL": "archived_business_template_receiver", "messageLogSQL": "archived_business_template_receiver",
		},
		NoSort: []string{"pageMessagesSQL", "pageSubscribeLogsSQL", "pageActionsSQL", "pageDeliveriesSQL", "pageEventsSQL", "pageAlertsSQL", "pagePanicsSQL"},
	}.Require(t)
}

// The cost of an archive that finds nothing does not grow with the tables.
func TestArchiveWithNothingOldReadsFewBlocks(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	conn := storetest.ConnectAs(t, url, sandbox.Roles.Retention)
	_, err := storetest.ConnectAsOwner(t, url).Exec(t.Context(), "set session_replication_role = replica;"+insertManyRowsSQL)
	require.NoError(t, err)
	for _, a := range maintenance.Pages() {
		blocks := storetest.CountBlocks(t, conn, a.SQL, pgx.QueryExecModeExec, time.Time{}, a.First, time.Now().AddDate(-1, 0, 0), a.Rows)
		require.Less(t, blocks, 8, a.Table)
	}
}
