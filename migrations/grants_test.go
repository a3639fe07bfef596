package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// ungranted lists the tables, views, sequences and functions of the schema that no role may
// use, except trigger functions and the sequences of identity columns.
const ungranted = `
SELECT c.relname::text FROM ` + ours + ` c WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT EXISTS (
	SELECT FROM unnest($1::text[]) role WHERE has_any_column_privilege(role, c.oid, 'SELECT, INSERT, UPDATE'))
UNION ALL
SELECT c.relname FROM ` + ours + ` c WHERE c.relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i')
	AND NOT EXISTS (SELECT FROM unnest($1::text[]) role WHERE has_sequence_privilege(role, c.oid, 'USAGE'))
UNION ALL
SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prorettype <> 'trigger'::regtype
	AND NOT EXISTS (SELECT FROM unnest($1::text[]) role WHERE has_function_privilege(role, p.oid, 'EXECUTE'))
ORDER BY 1`

func TestGrantsCoverEveryTable(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	require.Empty(t, queryStrings(t, conn, ungranted, roleNames), "each of these needs a line in grants.go")
	_, err := conn.Exec(t.Context(), `CREATE TABLE fresh (id int); CREATE FUNCTION fresh() RETURNS int LANGUAGE sql AS 'SELECT 1'; REVOKE EXECUTE ON FUNCTION fresh() FROM PUBLIC`)
	require.NoError(t, err)
	require.Equal(t, []string{"fresh", "fresh"}, queryStrings(t, conn, ungranted, roleNames), "the test must detect missing grants")
	require.Empty(t, migrations.UnknownGrants(t.Context(), conn), "remove these from grants.go")
}

// secretColumns lists the columns that a role may read and whose names suggest a secret.
const secretColumns = `
SELECT format('%s.%s', c.relname, a.attname) FROM ` + ours + ` c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p', 'v') AND a.attname ~ 'secret|token|password|credential|hash' AND a.attname !~ '_(until|at)$'
	AND has_column_privilege($1, c.oid, a.attnum, 'SELECT') ORDER BY 1`

func TestRolesReadOnlyNeededSecrets(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	for role, want := range map[string][]string{
		// The secrets that the functions use. Those of providers and endpoints are encrypted, and a proof does not reveal the token.
		sandbox.Roles.Hot:       {"archived_messages.confirm_token", "bulk_changes.token_proof", "bulk_changes.token_salt", "messages.confirm_token", "provider_tokens.token", "webhook_endpoints.old_secret", "webhook_endpoints.secret"},
		sandbox.Roles.Read:      {},
		sandbox.Roles.Admin:     {},
		sandbox.Roles.Retention: {"archived_messages.confirm_token", "messages.confirm_token"}, // it moves them
	} {
		require.Equal(t, want, queryStrings(t, conn, secretColumns, role), "%s: revoke it in grants.go if the role does not need it, or list it here", role)
	}
}

func TestRolesAreDenied(t *testing.T) {
	t.Parallel()
	database := sandbox.NewDatabase(t)
	owner, r := connect(t, database), sandbox.Roles
	partition := queryStrings(t, owner, `SELECT min(c.relname::text) FROM pg_class c WHERE c.relispartition AND c.relname LIKE 'receive_logs_2%' AND c.relkind = 'r'`)[0]
	_, err := owner.Exec(t.Context(), `
		CREATE SCHEMA other; CREATE TABLE other.table (id int);
		INSERT INTO callers (name, token_hash, roles, queues) VALUES ('shop', sha256('x'), '{submitter}', '{}');
		INSERT INTO operator_actions (caller_id, caller_name, request_id, action, subject) VALUES (0, 'admin', 'r', 'x', 'y')`)
	require.NoError(t, err)

	all := []string{
		`CREATE TABLE mine (id int)`, `CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'`, `CREATE SCHEMA mine`, `CREATE ROLE mine`,
		`SET ROLE ` + sandbox.Owner, `SET SESSION AUTHORIZATION ` + sandbox.Owner, `SELECT * FROM pg_shadow`, `SELECT * FROM pg_authid`,
		`SELECT * FROM other.table`, `ALTER TABLE callers DISABLE TRIGGER ALL`, `DROP TABLE tasks`, `TRUNCATE tasks`, `COPY tasks TO PROGRAM 'cat'`,
		`DELETE FROM callers`, `UPDATE operator_actions SET caller_name = 'x'`, `TRUNCATE operator_actions`,
		`UPDATE receive_logs SET phone_number = NULL`, `DELETE FROM receive_logs`, `DELETE FROM send_logs`, `UPDATE send_logs SET app_id = 'x'`,
		`DELETE FROM report_logs`, `UPDATE report_logs SET verdict = 'x'`, `SELECT * FROM ` + partition, `DELETE FROM ` + partition, `DROP TABLE ` + partition,
		`SELECT token_hash FROM callers`, `SELECT * FROM callers`, `SELECT callers FROM callers`,
		`DELETE FROM schema_migrations`, `INSERT INTO schema_migrations (version, name, sha256) VALUES (9999, 'x', 'x')`,
		`UPDATE tasks SET content = 'x'`, `DELETE FROM archived_operator_actions`,
		`DELETE FROM archived_tasks`, `DELETE FROM archived_messages`,
		`DELETE FROM archived_subscribe_message_logs`, `DELETE FROM archived_subscribe_message_sends`,
	}
	for _, other := range roleNames {
		all = append(all, `SET ROLE `+other) // no role may become another one
	}
	callers := []string{
		`UPDATE callers SET roles = '{admin}'`, `UPDATE callers SET token_hash = sha256('y')`, `UPDATE callers SET queues = '{}', revoked_at = NULL`,
		`INSERT INTO callers (name, token_hash, roles, queues) VALUES ('me', sha256('z'), '{admin}', '{}')`, `SELECT FROM callers FOR UPDATE`,
	}
	audit := []string{`DELETE FROM operator_actions`, `SELECT drop_log_partition('` + partition + `', '2030-01-01')`, `DELETE FROM tasks`, `INSERT INTO archived_operator_actions SELECT`}
	secrets := []string{`SELECT secret FROM webhook_endpoints`, `SELECT old_secret FROM webhook_endpoints`, `SELECT token FROM provider_tokens`, `SELECT * FROM webhook_endpoints`}
	templates := []string{`INSERT INTO sms_templates (template_name, template_content) VALUES ('x', 'y')`, `UPDATE sms_templates SET template_content = 'x'`,
		`DELETE FROM blocked_words`, `UPDATE default_sms_data SET content = 'x'`, `DELETE FROM default_sms_data`}
	forgedActions := []string{
		`INSERT INTO operator_actions (id, caller_id, caller_name, request_id, action, subject) OVERRIDING SYSTEM VALUE VALUES (2, 0, 'admin', 'r', 'x', 'y')`,
		`INSERT INTO operator_actions (caller_id, caller_name, request_id, action, subject, created_at) VALUES (0, 'admin', 'r', 'x', 'y', '2001-01-01')`,
	}
	chosenIDsAndTimes := []string{
		`INSERT INTO receive_logs (id, caller_id, status_code) OVERRIDING SYSTEM VALUE VALUES (1, 0, 200)`,
		`INSERT INTO receive_logs (caller_id, status_code, created_at) VALUES (0, 200, now() - interval '1 hour')`,
		`INSERT INTO send_logs (id, task_id, claim_id, app_id, phone_number, content) OVERRIDING SYSTEM VALUE VALUES (1, gen_random_uuid(), 1, 'a', '', '')`,
		`INSERT INTO send_logs (task_id, claim_id, app_id, phone_number, content, created_at) VALUES (gen_random_uuid(), 1, 'a', '', '', now() - interval '1 hour')`,
		`INSERT INTO report_logs (id, task_id, verdict) OVERRIDING SYSTEM VALUE VALUES (1, gen_random_uuid(), 'applied')`,
		`INSERT INTO report_logs (task_id, verdict, created_at) VALUES (gen_random_uuid(), 'applied', now() - interval '1 hour')`,
		`INSERT INTO dead_letters (id, function, event_id, event_type, event, reason, attempts) OVERRIDING SYSTEM VALUE VALUES (1, 'f', 'e', 't', '{}', 'r', 1)`,
		`INSERT INTO dead_letters (function, event_id, event_type, event, reason, attempts, created_at) VALUES ('f', 'e', 't', '{}', 'r', 1, '2001-01-01')`,
		`INSERT INTO event_outbox (id, kind, ids) OVERRIDING SYSTEM VALUE VALUES (1, 'task.pending', '{}')`,
		`INSERT INTO tasks (id, seq, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
			OVERRIDING SYSTEM VALUE VALUES (gen_random_uuid(), 1, 0, 'q', 5, 1, 0, '', '')`,
		`INSERT INTO subscribe_message_logs (id, template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid, message_data, caller_id, task_id)
			OVERRIDING SYSTEM VALUE VALUES (1, 't', 't', 'b', 1, 1, 'o', '{}', 7, gen_random_uuid())`,
		`INSERT INTO subscribe_message_logs (created_at) VALUES ('2001-01-01')`, `INSERT INTO subscribe_message_sends (created_at) VALUES ('2001-01-01')`,
	}
	fixedColumns := []string{
		`UPDATE webhook_endpoints SET url = 'https://example.org'`, `UPDATE webhook_endpoints SET caller_id = 7`, `UPDATE webhook_endpoints SET id = gen_random_uuid()`,
		`UPDATE webhook_endpoints SET created_at = now()`, `UPDATE webhook_endpoints SET events = '{}'`, `UPDATE webhook_deliveries SET url = 'https://example.org'`,
		`UPDATE webhook_deliveries SET subject = id`, `UPDATE webhook_events SET payload = '{}'`, `DELETE FROM webhook_events`, `UPDATE archived_messages SET data = 'x'`, `UPDATE archived_messages SET destination = 'x'`,
		`INSERT INTO archived_messages SELECT`, `UPDATE subscribe_message_logs SET caller_id = 7`, `UPDATE subscribe_message_logs SET receiver_user_id = 7`,
		`DELETE FROM subscribe_message_logs`, `UPDATE archived_subscribe_message_logs SET message_data = '{}'`, `INSERT INTO archived_subscribe_message_logs SELECT`,
		`UPDATE provider_tokens SET app_id = 'x'`, `UPDATE event_outbox SET kind = 'task.pending'`, `UPDATE dead_letters SET event = '{}'`,
		`UPDATE alerts SET value = 0`, `UPDATE upkeep SET what = what || '.gone'`, `DELETE FROM upkeep`, `INSERT INTO upkeep (what) VALUES ('x')`,
	}
	work := []string{`INSERT INTO submission_keys VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid())`, `DELETE FROM task_live`, `UPDATE message_live SET epoch = 2`}
	for role, denied := range map[string][]string{
		r.Hot:       slices.Concat(all, callers, audit, templates, forgedActions, chosenIDsAndTimes, fixedColumns, []string{`DELETE FROM dead_letters`, `SELECT FROM operator_actions`, `SELECT FROM receive_logs`}),
		r.Read:      slices.Concat(all, callers, audit, secrets, templates, work, forgedActions, chosenIDsAndTimes, fixedColumns, []string{`DELETE FROM dead_letters`, `SELECT make_log_partitions(1)`, `INSERT INTO operator_actions DEFAULT VALUES`}),
		r.Admin:     slices.Concat(all, audit, secrets, work, forgedActions, chosenIDsAndTimes, fixedColumns, []string{`SELECT FROM operator_actions`}),
		r.Retention: slices.Concat(all, callers, secrets, templates, work, []string{`SELECT token_proof(1, '')`, `INSERT INTO operator_actions DEFAULT VALUES`}),
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			conn := connectAs(t, database, role, sandbox.Password(role))
			_, err := conn.Exec(t.Context(), "SET default_transaction_read_only = off")
			require.NoError(t, err)
			for _, sql := range denied {
				if sql == `SET ROLE `+role {
					continue
				}
				_, err := conn.Exec(t.Context(), sql)
				require.Error(t, err, sql)
				require.Regexp(t, `permission denied|must be owner|must be superuser|SQLSTATE 42501`, err.Error(), sql)
			}
		})
	}
	t.Run("PUBLIC", func(t *testing.T) {
		require.Empty(t, queryStrings(t, owner, `SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
			AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x WHERE x.grantee = 0)`), "PUBLIC can execute these functions: revoke it in their migrations")
		require.Equal(t, []string{"false"}, queryStrings(t, owner, `SELECT exists(SELECT FROM pg_namespace n, aclexplode(n.nspacl) x
			WHERE n.nspname = 'public' AND x.grantee = 0 AND x.privilege_type = 'CREATE')::text`))
	})
}

func TestEarlierGrantsAreRevoked(t *testing.T) {
	t.Parallel()
	o := newRoles(t)
	database := sandbox.NewEmptyDatabase(t)
	owner := connect(t, database)
	_, err := migrations.Up(t.Context(), owner, migrations.Roles{})
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), strings.ReplaceAll(strings.ReplaceAll(`
		CREATE ROLE HOT LOGIN PASSWORD 'owner'; CREATE ROLE READ LOGIN PASSWORD 'owner'; GRANT CREATE ON SCHEMA public TO PUBLIC;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO HOT; GRANT SELECT ON ALL TABLES IN SCHEMA public TO READ;
		GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO HOT; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO HOT;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO HOT;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO HOT;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO HOT;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO READ;
		GRANT UPDATE (roles) ON callers TO HOT`, "HOT", o.Hot), "READ", o.Read))
	require.NoError(t, err)
	old := connectAs(t, database, o.Hot, "owner")
	_, err = old.Exec(t.Context(), "UPDATE callers SET roles = '{admin}'")
	require.NoError(t, err, "the earlier grants allow it")

	_, err = migrations.Up(t.Context(), owner, o)
	require.NoError(t, err)
	fresh := connect(t, sandbox.NewDatabase(t))
	grants := func(conn *pgx.Conn, r migrations.Roles) string {
		names := strings.NewReplacer(r.Hot, "HOT", r.Read, "READ", r.Admin, "ADMIN", r.Retention, "RETENTION")
		return names.Replace(strings.Join(queryStrings(t, conn, aclsOf), "\n"))
	}
	require.Equal(t, grants(fresh, roles), grants(owner, o),
		"an upgraded database and a new one grant the same")
	_, err = owner.Exec(t.Context(), "CREATE TABLE later (id int)")
	require.NoError(t, err)
	for _, sql := range []string{"UPDATE callers SET roles = '{admin}'", "SELECT FROM later", "CREATE TABLE mine (id int)"} {
		_, err = old.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "permission denied", "in a session that began before the migration: %s", sql)
	}
	_, err = old.Exec(t.Context(), "SELECT make_log_partitions(1)")
	require.NoError(t, err, "the session keeps the privileges that are granted again")
	_, err = login(t, database, o.Hot, "owner")
	require.ErrorContains(t, err, "password authentication failed")
}

// aclsOf lists the privileges on tables, columns, functions and the schema, without
// those of owners.
const aclsOf = `
SELECT format('%s %s %s', name, grantee::regrole, string_agg(privilege_type, ',' ORDER BY privilege_type)) FROM (
	SELECT c.relname::text AS name, x.grantee, x.privilege_type, c.relowner AS owner FROM pg_class c, aclexplode(c.relacl) x WHERE c.relnamespace = 'public'::regnamespace
	UNION ALL
	SELECT format('%s.%s', c.relname, a.attname), x.grantee, x.privilege_type, c.relowner FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) x
	WHERE c.relnamespace = 'public'::regnamespace
	UNION ALL
	SELECT p.proname, x.grantee, x.privilege_type, p.proowner FROM pg_proc p, aclexplode(p.proacl) x WHERE p.pronamespace = 'public'::regnamespace
	UNION ALL
	SELECT 'schema', x.grantee, x.privilege_type, n.nspowner FROM pg_namespace n, aclexplode(n.nspacl) x WHERE n.nspname = 'public'
) acl WHERE grantee <> owner GROUP BY name, grantee ORDER BY name COLLATE "C", grantee::regrole::text COLLATE "C"`
