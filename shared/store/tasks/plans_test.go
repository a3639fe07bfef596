package tasks_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestPlansUseIndexesWithStaleStatistics(t *testing.T) {
	t.Parallel()
	const claim = `'default', 10, array[1], array[10], array[1]::bigint[], array['app'], array[interval '1 minute'], array[false], array['{}']::jsonb[], array[0]::bigint[]`
	const reported = storetest.SomeIDs + `, array[0]::bigint[], array['app'], array[1]::bigint[], array[true]`
	const claimAbove = claim + `, array[5]::smallint[], array[0]::smallint[], array['00000000-0000-0000-0000-000000000000']::uuid[]`
	storetest.Plans{
		Fill: `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 20000);
insert into task_live (id, state, priority, max_retries, on_unknown, queue)
	select id, 1, 5, 3, 0, 'default' from tasks limit 16000;
insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks offset 16000;
insert into submission_keys select id, id, id from tasks;
insert into queue_pauses (queue, reason, paused_by, by_hand) select 'q' || g, '', '', true from generate_series(1, 1000) g;
insert into subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data)
	select id, 1, 't', 'o', '{}' from tasks;
insert into template_pauses (template_id, caller_id, strikes, reason) select 't' || g, 1, 1, '' from generate_series(1, 1000) g;
insert into provider_tokens (provider, app_id, token, expires_at, version) select 'wechat', g, 'enc2.', now(), 1 from generate_series(1, 1000) g`,
		Tables: []string{"tasks", "task_live", "task_done", "submission_keys", "queue_pauses", "subscribe_message_sends", "template_pauses", "provider_tokens"},
		Args: map[string]string{
			"claimSQL":                      claim,
			"sharedClaimSQL":                claim,
			"claimWithEventsSQL":            claim,
			"sharedClaimWithEventsSQL":      claim,
			"removeBodilessSQL":             storetest.SomeIDs + `, 'default'`,
			"hasWorkSQL":                    `'default'`,
			"firstPendingSQL":               `'default'`,
			"claimAboveSQL":                 claimAbove,
			"sharedClaimAboveSQL":           claimAbove,
			"claimAboveWithEventsSQL":       claimAbove,
			"sharedClaimAboveWithEventsSQL": claimAbove,
			"lockDueSQL":                    `100, 'default'`,
			"queuePauseSQL":                 `'q1'`,
			"endPauseSQL":                   `'q1'`,
			"releasedSQL":                   `'t', 'wechat', null, 100`,
			"pausedTemplatesSQL":            `array['t1'], array[1]`,
			"clearTemplateSQL":              `'t1', 1`,
			"tokenSQL":                      `'wechat', '1'`,
			"dueSQL":                        "",
			"lockLiveSQL":                   storetest.SomeIDs,
			"lockDoneSQL":                   storetest.SomeIDs,
			"readLiveSQL":                   storetest.SomeIDs,
			"readDoneSQL":                   storetest.SomeIDs,
			"lockReportedLiveSQL":           reported,
			"lockReportedDoneSQL":           reported,
			"readReportedLiveSQL":           reported,
			"readReportedDoneSQL":           reported,
			"tasksExistSQL":                 storetest.SomeIDs,
			"deleteLiveSQL":                 storetest.SomeIDs,
			"updateLive":                    storetest.SomeIDs + `, array[1]::smallint[], array[1]::smallint[], array['']::text[], array['']::text[], array[1]::smallint[], array[null]::timestamptz[]`,
			"insertEvents":                  storetest.SomeIDs + `, array['task.succeeded'], array[0]::smallint[], array[1]::bigint[], array[false]`,
			"reviveSQL":                     storetest.SomeIDs,
			"extendSQL":                     storetest.AnID + `, 'app', 0, 60, false, 0`,
			"detailSQL":                     storetest.AnID,
			"firstCallsSQL":                 storetest.SomeIDs + `, ` + storetest.SomeIDs,
			"knownKeysSQL":                  storetest.SomeIDs,
			"knownTasksSQL":                 storetest.SomeIDs,
			"callerByNameSQL":               `'x', '\x00'`,
			"existingCallersSQL":            `array['x']`,
			"lockDefaultsSQL":               `array['13800138000']::varchar[]`,
			"allDefaultsSQL":                `array['13800138000']::varchar[]`,
		},
		Texts: tasks.MultiRowStatements(),
		Index: map[string]string{
			"claimSQL": "task_live_ready", "claimWithEventsSQL": "task_live_ready", "claimAboveSQL": "task_live_ready", "claimAboveWithEventsSQL": "task_live_ready",
			"sharedClaimSQL": "task_live_ready", "sharedClaimWithEventsSQL": "task_live_ready", "sharedClaimAboveSQL": "task_live_ready", "sharedClaimAboveWithEventsSQL": "task_live_ready",
			"hasWorkSQL": "task_live_ready", "firstPendingSQL": "task_live_ready",
			"lockDueSQL": "task_live_due_queues", "dueSQL": "task_live_due",
		},
		Generic: []string{"claimSQL", "claimWithEventsSQL", "claimAboveSQL", "claimAboveWithEventsSQL"},
		NoSort: []string{
			"claimSQL", "claimWithEventsSQL", "claimAboveSQL", "claimAboveWithEventsSQL",
			"sharedClaimSQL", "sharedClaimWithEventsSQL", "sharedClaimAboveSQL", "sharedClaimAboveWithEventsSQL",
		},
	}.Require(t)
}

func TestMultiRowStatementsPrepareAgainstTheMigratedSchema(t *testing.T) {
	t.Parallel()
	conn := storetest.ConnectAs(t, sandbox.NewDatabase(t), sandbox.Roles.Hot)
	for name, sql := range tasks.MultiRowStatements() {
		_, err := conn.Prepare(t.Context(), name, sql)
		require.NoError(t, err, name)
	}
}

func TestLiveAndFinishedTasksHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	conn := storetest.ConnectAs(t, sandbox.NewDatabase(t), sandbox.Roles.Hot)
	names := func(statement string) []string {
		described, err := conn.Prepare(t.Context(), "", storetest.Statements(t)[statement])
		require.NoError(t, err)
		return store.Column(described.Fields, func(f pgconn.FieldDescription) string { return f.Name })
	}
	require.Equal(t, names("lockLiveSQL"), names("lockDoneSQL"), "a union matches columns by position, and has the names of its first part")
}

// A sender may report its task any number of times, and each report is logged. After another sender has claimed the task, each report of
// the former sender runs logForeign, in a flush that is shared with all callers.
func TestForeignReportReadsNoOtherReportsOfItsTask(t *testing.T) {
	t.Parallel()
	const nulls = `array[null]::bigint[], array['app'], array[null]::integer[], array['stale_claim'], array[null]::text[], array[null]::text[], array[null]::json[]`
	storetest.Plans{
		Fill:  `insert into report_logs (task_id, verdict) select ` + storetest.AnID + `, 'already' from generate_series(1, 50000)`,
		Args:  map[string]string{"logForeign": storetest.SomeIDs + `, ` + nulls + `, array[7]::bigint[]`},
		Texts: tasks.MultiRowStatements(),
		Index: map[string]string{"logForeign": "task_id_caller_id_idx"},
	}.Require(t)
}

// If a statement compared each task with each report, a flush of 500 reports would take ten times as long.
func TestReportsOfFlushAreReadOnceForAllTasks(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db, hot := storetest.OpenAt(t, url), storetest.ConnectWithSettingsOf(t, url, sandbox.Roles.Hot)
	const n = 100
	submitMany(t, db, n)
	claimed := db.ClaimAs(t, "app", n)
	require.Len(t, claimed, n)
	requireOnce := func(names ...string) {
		t.Helper()
		for _, name := range names {
			lines, err := store.QueryRows(t.Context(), hot, pgx.RowTo[string], "explain (analyze, costs off, timing off) "+storetest.Statements(t)[name],
				store.Column(claimed, func(c tasks.Claimed) task.ID { return c.ID }), make([]int64, n), slices.Repeat([]string{"app"}, n), make([]int64, n), slices.Repeat([]bool{true}, n))
			require.NoError(t, err)
			plan := strings.Join(lines, "\n")
			require.Regexp(t, fmt.Sprintf(`Function Scan on r \(actual rows=%d(\.00)? loops=1\)`, n), plan, name)
			require.Contains(t, plan, "Index Cond: (id = r.reported_id)", name)
		}
	}
	requireOnce("lockReportedLiveSQL", "readReportedLiveSQL")
	for _, c := range claimed {
		db.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", Outcome: task.SentFailed})
	}
	db.Exec(t, `update task_done set reason = $1`, int16(task.TimedOut)) // a late success may change these tasks
	requireOnce("lockReportedDoneSQL", "readReportedDoneSQL")
}
