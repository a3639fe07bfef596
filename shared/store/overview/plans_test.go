package overview_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/overview"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/task"
)

func TestReadPlansUseIndexes(t *testing.T) {
	t.Parallel()
	storetest.Plans{
		Fill: `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 20000);
insert into task_live (id, state, priority, max_retries, on_unknown, queue, due_at, claim_id, app_id)
	select id, seq % 4, 5, 3, 0, 'q' || seq % 10, now(), 1, 'a' from tasks;
insert into message_live (id, kind, destination_key, stream, status, remaining_sends, next_at)
	select id, seq % 3, 'd', '', seq % 2, seq % 3, case when seq % 3 > 0 then now() end from tasks;
insert into event_outbox (kind, ids) select 'task.succeeded', array[id] from tasks;
insert into webhook_deliveries (id, event_id, endpoint_id, caller_id, event_type, subject, url) select gen_random_uuid(), id, id, 1, 'x', id, 'u' from tasks;
insert into webhook_endpoints (id, caller_id, url, secret) select id, 1, 'https://b.example', 'enc2.' from tasks limit 1000`,
		Tables: []string{"task_live", "message_live", "event_outbox", "webhook_deliveries", "webhook_endpoints"},
		Args: map[string]string{
			"countStateSQL":        `1::smallint, 100000, 1000, 1000, 1000000`,
			"countLeasesSQL":       `100000, 1000`,
			"overviewOtherSQL":     `100001`,
			"dueMessagesSQL":       `100001`,
			"waitingDeliveriesSQL": `100001`,
		},
		Index: map[string]string{
			"countStateSQL": "task_live_ready", "countLeasesSQL": "task_live_leases", "overviewOtherSQL": "message_live_stuck", "dueMessagesSQL": "message_live_due",
			"waitingDeliveriesSQL": "webhook_deliveries_due",
		},
	}.Require(t)
}

func TestEachStateIsCountedByItsIndex(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for state, index := range map[int16]string{0: "task_live_scheduled", 1: "task_live_ready", 3: "task_live_held"} {
		plan := storetest.Explain(t, db.Read, overview.OverviewPlanSQL, storetest.Statements(t)["countStateSQL"], state, 10, 10, 10, 10)
		require.NotContains(t, plan, "Seq Scan")
		require.Contains(t, plan, index)
	}
}

func TestCountPlanUsesIndexes(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	now := time.Now()
	from := now.Add(-time.Minute)
	plan := storetest.Explain(t, db.Hot, `set local enable_bitmapscan = on`, overview.AddCountsSQL, from, now, task.IDFloor(from), task.IDFloor(now), 200, 100)
	for _, table := range []string{"tasks", "task_done", "send_logs", "report_logs", "webhook_deliveries"} {
		require.NotContains(t, plan, "Seq Scan on "+table)
	}
	for _, index := range []string{"tasks_pkey", "task_done_reported", "task_id_idx", "created_at_idx", "webhook_deliveries_finished"} {
		require.Contains(t, plan, index)
	}
}
