package migrations_test

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// before returns a database as it was before the migration of this name.
func before(t *testing.T, name string) *pgx.Conn {
	t.Helper()
	names, err := fs.Glob(migrations.Files, "*.sql")
	require.NoError(t, err)
	require.Contains(t, names, name)
	older := fstest.MapFS{}
	for _, n := range names {
		if n < name {
			text, err := fs.ReadFile(migrations.Files, n)
			require.NoError(t, err)
			older[n] = &fstest.MapFile{Data: text}
		}
	}
	conn := connect(t, sandbox.NewEmptyDatabase(t))
	_, err = migrations.UpFrom(t.Context(), conn, older, roles)
	require.NoError(t, err)
	return conn
}

// Two closed days and an open one, with a final SMS and a final subscribe message each;
// those of the first day are archived.
const mixedHistory = `
INSERT INTO tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
	SELECT gen_random_uuid(), 7, q, 5, 3, 0, '', day::text FROM unnest(array['2026-01-01', '2026-01-02', '2026-01-03']::date[]) day,
		unnest(array['default', 'wechat', 'wechat.recorded']) q;
INSERT INTO subscribe_message_logs (template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data,
		caller_id, task_id, send_status, send_time)
	SELECT 'x', 'TYPE', 'b', seq, 1, 'o', '{}', 7, id, CASE queue WHEN 'wechat' THEN 2 ELSE 1 END, content::timestamp AT TIME ZONE 'UTC'
	FROM tasks WHERE queue <> 'default';
INSERT INTO subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data)
	SELECT task_id, id, 'x', 'o', '{}' FROM subscribe_message_logs;
INSERT INTO task_done (id, status, reason, retry_count, ended, reported_at)
	SELECT id, CASE queue WHEN 'wechat' THEN 3 ELSE 2 END, CASE queue WHEN 'wechat' THEN 1 ELSE 0 END, 0, 5, content::timestamp AT TIME ZONE 'UTC' + interval '23 hours'
	FROM tasks;
INSERT INTO task_totals VALUES ('2026-01-01', 2, 1), ('2026-01-02', 2, 1);
INSERT INTO archived_tasks (id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at, status, reason, retry_count, ended, reported_at)
	SELECT t.id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, created_at, status, reason, d.retry_count, ended, reported_at
	FROM tasks t JOIN task_done d USING (id) WHERE content = '2026-01-01';
DELETE FROM task_done WHERE id IN (SELECT id FROM archived_tasks);
DELETE FROM tasks WHERE id IN (SELECT id FROM archived_tasks)`

func TestMigrateSplitsClosedDays(t *testing.T) {
	t.Parallel()
	conn := before(t, "0019_sms_apart.sql")
	_, err := conn.Exec(t.Context(), mixedHistory)
	require.NoError(t, err)
	_, err = migrations.Up(t.Context(), conn, roles)
	require.NoError(t, err)
	require.Equal(t, []string{
		"2026-01-01: SMS 1 succeeded 0 failed, subscribe 1 succeeded 1 failed",
		"2026-01-02: SMS 1 succeeded 0 failed, subscribe 1 succeeded 1 failed",
	}, queryStrings(t, conn, `SELECT format('%s: SMS %s succeeded %s failed, subscribe %s succeeded %s failed',
		day, succeeded, failed, subscribe_succeeded, subscribe_failed) FROM task_totals ORDER BY day`))
	require.Equal(t, []string{"default f", "wechat t", "wechat.recorded t"},
		queryStrings(t, conn, `SELECT DISTINCT queue || ' ' || left(subscribe::text, 1) FROM tasks JOIN task_done USING (id) ORDER BY 1`))
	require.Equal(t, []string{"2026-01-01 7 TYPE 2 1 1", "2026-01-02 7 TYPE 2 1 1"},
		queryStrings(t, conn, `SELECT concat_ws(' ', day, caller_id, template_type, total, success, failed) FROM subscribe_totals ORDER BY day`))
	_, err = conn.Exec(t.Context(), `INSERT INTO task_totals (day, succeeded, failed) VALUES ('2026-01-03', 2, 1)`)
	require.ErrorContains(t, err, "null value", "an older program cannot close a day as it did")
}

func queryStrings(t *testing.T, conn *pgx.Conn, query string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), query, args...)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}

// Callers, and what they have confirmed: a message of the main tables and one of the
// archive for each line.
const confirmedHistory = `
INSERT INTO callers (name, token_hash, roles, queues, revoked_at)
	SELECT name, decode(repeat('00', 32), 'hex'), ARRAY[role], '{}', CASE name WHEN 'gone' THEN now() END
	FROM (VALUES ('points', 'receiver'), ('many', 'receiver'), ('idle', 'receiver'), ('early', 'receiver'), ('gone', 'receiver'),
		('bob', 'receiver'), ('shop', 'submitter')) c (name, role);
INSERT INTO messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends, expected_receipts)
	SELECT gen_random_uuid(), gen_random_uuid(), 0, consumer, n, gen_random_uuid(), kind, destination, 't', '1', true, 5, 1
	FROM (VALUES ('points', 0, 'msg.orders.paid'), ('points', 0, 'bills'), ('early', 0, 'msg.orders.paid'), ('gone', 0, 'msg.orders.paid'),
			('shop', 0, 'msg.orders.paid'), ('bob', 2, 'bob'), ('bob', 1, 'https://example.com/')
		UNION ALL SELECT 'many', 0, 'msg.orders.' || n FROM generate_series(1, 101) n UNION ALL SELECT 'many', 0, 'a.b'
	) m (consumer, kind, destination), generate_series(1, 2) n;
INSERT INTO message_receipts (message_id, consumer, send_no) SELECT id, sender, CASE sender WHEN 'early' THEN 0 ELSE 1 END FROM messages;
INSERT INTO archived_messages (id, call_id, caller_id, sender, client_msg_id, fingerprint, kind, destination, type, data, confirm, max_sends,
		expected_receipts, created_at, status, abandoned, remaining_sends, send_no, epoch, finished_at, receipts)
	SELECT gen_random_uuid(), gen_random_uuid(), 0, sender, client_msg_id, fingerprint, kind, destination || '.old', type, data, confirm, max_sends,
		expected_receipts, created_at, 2, false, 4, 1, 1, now(),
		jsonb_build_array(jsonb_build_object('consumer', sender, 'confirmedAt', now(), 'sendNo', CASE sender WHEN 'early' THEN 0 ELSE 1 END))
	FROM messages WHERE sender IN ('points', 'early')`

func TestMigrateGrantsConfirmedSubjects(t *testing.T) {
	t.Parallel()
	conn := before(t, "0028_receives_confirmed.sql")
	_, err := conn.Exec(t.Context(), confirmedHistory)
	require.NoError(t, err)
	_, err = migrations.Up(t.Context(), conn, roles)
	require.NoError(t, err)
	require.Equal(t, []string{
		"bob {}", "early {}", "gone {}", "idle {}",
		"many {a.b,msg.orders.>}",
		"points {bills,bills.old,msg.orders.paid,msg.orders.paid.old}",
		"shop {}",
	}, queryStrings(t, conn, `SELECT name || ' ' || receives::text FROM callers ORDER BY name`))
}

// Callers that a limited operator and an unlimited one created, by the audit log.
const operatorHistory = `
INSERT INTO callers (name, token_hash, roles, queues)
	SELECT name, decode(repeat('00', 32), 'hex'), ARRAY[CASE name WHEN 'ops.phone' THEN 'sender' ELSE 'admin' END], CASE name WHEN 'boss' THEN '{}' ELSE '{bulk}' END::text[]
	FROM unnest(ARRAY['boss', 'ops', 'ops.deputy', 'ops.deputy.phone', 'ops.given', 'ops.taken']) name;
INSERT INTO operator_actions (caller_id, caller_name, request_id, action, subject)
	SELECT o.id, maker, '', action, 'caller/' || c.id
	FROM (VALUES ('boss', 'ops', 'caller.create'), ('ops', 'ops', 'caller.rotate'), ('ops.deputy', 'ops.deputy.phone', 'caller.create'),
		('boss', 'ops.given', 'caller.create'), ('ops', 'ops.given', 'caller.update'), ('boss', 'ops.taken', 'caller.create'), ('ops', 'ops.taken', 'caller.rotate')
	) a (maker, made, action) JOIN callers o ON o.name = maker JOIN callers c ON c.name = made;
INSERT INTO archived_operator_actions (id, caller_id, caller_name, request_id, action, subject, created_at)
	SELECT 1, o.id, 'ops', '', 'caller.create', 'caller/' || c.id, now() FROM callers o, callers c WHERE o.name = 'ops' AND c.name = 'ops.deputy'`

func TestMigrateFindsWhoMadeCallers(t *testing.T) {
	t.Parallel()
	conn := before(t, "0043_caller_accounts.sql")
	_, err := conn.Exec(t.Context(), operatorHistory)
	require.NoError(t, err)
	_, err = migrations.Up(t.Context(), conn, roles)
	require.NoError(t, err)
	require.Equal(t, []string{
		"boss - -", "ops - -", "ops.deputy ops ops", "ops.deputy.phone ops.deputy ops", "ops.given - -", "ops.taken ops ops",
	}, queryStrings(t, conn, `SELECT concat_ws(' ', c.name, coalesce(o.name, '-'), coalesce(a.name, '-'))
		FROM callers c LEFT JOIN callers o ON o.id = c.made_by LEFT JOIN callers a ON a.id = c.account_id ORDER BY c.id`))
}
