package migrations

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// grants lists the privileges of all roles, one line for each table, view, sequence and SQL
// function that any role may use, and one column for each kind of role. The abbreviations are those of the Postgres manual:
// r SELECT, a INSERT, w UPDATE, d DELETE, U USAGE, X EXECUTE. w(x,y) is for the
// columns x and y only, r(!x,y) for all columns except x and y. Locking a row requires UPDATE of
// some column, so w(id) is the privilege to lock. Where id, seq or created_at is excluded, only
// the database sets it: a role that could insert generated numbers in advance could make the
// inserts of all others fail.
//
// No role may change a row of receive_logs, send_logs, report_logs or operator_actions. Only
// retention may remove such rows: whole partitions of the logs (drop_log_partition), and rows of
// operator_actions, which it archives first. The roles may change the state and the secrets of an
// endpoint, not its URL. Partitions have no grants: they are written and read through
// their table. No role may read token_hash: the SQL function token_proof
// returns a proof with which a token is checked.
const grants = `
object                                hot                                                                                                     admin                                                           read                   retention
accepted_checked                      raw                                                                                                     -                                                               r                      -
accepted_messages                     rawd                                                                                                    -                                                               r                      -
alerts                                raw(cleared_at,cleared_value)                                                                           -                                                               r                      rdw(id)
archived_messages                     rw(status,abandoned,finished_by,finished_at,receipts)                                                   -                                                               r(!confirm_token)      ra
archived_operator_actions             -                                                                                                       -                                                               r                      ra
archived_subscribe_message_logs       r                                                                                                       -                                                               r                      ra
archived_subscribe_message_sends      r                                                                                                       -                                                               r                      ra
archived_tasks                        r                                                                                                       -                                                               r                      ra
blocked_words                         r                                                                                                       rad                                                             r                      -
bulk_changes                          raw(place,looked,changed,refused,last_error,leased_to,stopped_by,stop_reason,finished_at)               -                                                               r(!token_salt,token_proof) r(!token_salt,token_proof)dw(id)
callers                               r(!token_hash)                                                                                          r(!token_hash)aw                                                r(!token_hash)         -
dead_letters                          ra(!id,created_at)w(attempts,reason,dead)                                                               rd                                                              r                      rdw(id)
default_sms_data                      rw(is_sent,updated_at)                                                                                  rawd                                                            r                      -
event_outbox                          ra(!id,created_at)w(ids,next_at)d                                                                       -                                                               r                      r
inbox_trims                           rawd                                                                                                    -                                                               r                      -
inbox_unsaved                         rawd                                                                                                    -                                                               r                      -
message_cursors                       raw                                                                                                     -                                                               r                      -
message_done                          rawd                                                                                                    -                                                               r                      rdw(id)
message_live                          rawd                                                                                                    -                                                               r                      r
message_receipts                      ra                                                                                                      -                                                               r                      rd
messages                              radw(id,confirm_token)                                                                                  -                                                               r(!confirm_token)      rd
operator_actions                      a(!id,created_at)                                                                                       a(!id,created_at)                                               r                      rdw(id)
overview_counted                      rw                                                                                                      -                                                               r                      -
overview_throughput                   rawd                                                                                                    -                                                               r                      -
overview_totals                       rawd                                                                                                    -                                                               r                      -
provider_tokens                       ra(!updated_at)w(token,expires_at,version,updated_at)                                                   -                                                               -                      -
queue_pauses                          rawd                                                                                                    -                                                               r                      -
receive_logs                          a(!id,created_at)                                                                                       -                                                               r                      -
reliable_messages                     r                                                                                                       -                                                               r                      -
report_logs                           ra(!id,created_at)                                                                                      -                                                               r                      -
schema_migrations                     r                                                                                                       r                                                               r                      r
send_logs                             r(task_id,created_at)a(!id,created_at)                                                                  -                                                               r                      -
sms_tasks                             r                                                                                                       -                                                               r                      -
sms_templates                         r                                                                                                       raw                                                             r                      -
stream_pauses                         rawd                                                                                                    -                                                               r                      -
stream_usage                          rawd                                                                                                    -                                                               r                      -
submission_keys                       ra                                                                                                      -                                                               r                      -
subscribe_message_logs                ra(!id,created_at)w(!id,business_type,business_id,template_type,receiver_user_id,caller_id,created_at)  -                                                               r                      rdw(id)
subscribe_message_sends               ra(!created_at)                                                                                         -                                                               r                      rd
subscribe_total_changes               ra                                                                                                      -                                                               r                      rd
subscribe_totals                      r                                                                                                       -                                                               r                      raw(total,success,failed)
task_done                             rawd                                                                                                    -                                                               r                      rdw(id)
task_live                             rawd                                                                                                    -                                                               r                      r
task_totals                           rw(succeeded,failed,subscribe_succeeded,subscribe_failed)                                               -                                                               r                      raw
tasks                                 ra(!seq,created_at)                                                                                     -                                                               r                      rd
template_pauses                       rawd                                                                                                    -                                                               r                      -
upkeep                                rw(begun_at,place,seq)                                                                                   -                                                               r                      -
webhook_deliveries                    ra(!created_at)w(state,attempts,claims,tries,tried,next_at,finished_at)d                                -                                                               r                      rdw(id)
webhook_endpoints                     ra(!created_at)w(!id,caller_id,url,description,events,format,created_at)d                               r(caller_id,url,enabled)w(enabled,disabled_reason,disabled_at)  r(!secret,old_secret)  -
webhook_events                        ra(!recorded_at)w(recorded_at)                                                                          -                                                               r                      rdw(id)
claim_seq                             U                                                                                                       -                                                               -                      -
drop_log_partition(text,timestamptz)  -                                                                                                       -                                                               -                      X
make_log_partitions(integer)          X                                                                                                       -                                                               -                      X
old_log_partitions(timestamptz)       -                                                                                                       -                                                               -                      X
restore_subscribe_message(bigint)     X                                                                                                       -                                                               -                      -
token_proof(bigint,bytea)             X                                                                                                       X                                                               X                      -
`

// grantLine is one line of grants.
type grantLine struct {
	object     string
	privileges []string // abbreviated; the index is the kind of role, which begins at 1; "" = none
}

// parseGrants panics if grants does not have the form of its comment.
func parseGrants() []grantLine {
	var all []grantLine
	for line := range strings.Lines(strings.TrimSpace(grants)) {
		words := strings.Fields(line)
		if len(words) != int(retention)+1 {
			panic("migrations: grants: " + line)
		}
		for i, word := range words {
			words[i] = strings.TrimPrefix(word, "-")
		}
		all = append(all, grantLine{words[0], words})
	}
	return all[1:]
}

var privilegePattern = regexp.MustCompile(`([rawdUX])(?:\((!?)([a-z_,]+)\))?`)

var privilegeNames = map[string]string{"r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE", "U": "USAGE", "X": "EXECUTE"}

// object is a table, view, sequence or function of the schema.
type object struct {
	name    string // quoted; with argument types if it is a function
	class   string // TABLE (views, too), SEQUENCE or FUNCTION
	columns []string
}

// objectsSQL lists the objects of the schema that the connected user owns, without those of extensions.
const objectsSQL = `
SELECT c.relname, format('public.%I', c.relname), CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
	array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND pg_has_role(c.relowner, 'USAGE')
	AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
UNION ALL
SELECT format('%s(%s)', p.proname, replace(replace(oidvectortypes(p.proargtypes), 'timestamp with time zone', 'timestamptz'), ', ', ',')),
	p.oid::regprocedure::text, 'FUNCTION', '{}'
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND pg_has_role(p.proowner, 'USAGE')
	AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')`

// objectsOf returns the objects of objectsSQL by their names in grants.
func objectsOf(ctx context.Context, conn *pgx.Conn) (map[string]object, error) {
	rows, err := conn.Query(ctx, objectsSQL)
	if err != nil {
		return nil, err
	}
	objects := map[string]object{}
	var key string
	var o object
	_, err = pgx.ForEachRow(rows, []any{&key, &o.name, &o.class, &o.columns}, func() error {
		objects[key] = o
		o.columns = nil
		return nil
	})
	return objects, err
}

// grantAll gives the roles the privileges that the constant grants lists, and revokes all others. It does so in one
// transaction: a session never loses a privilege, even for a moment, that its role has before and after.
func grantAll(ctx context.Context, conn *pgx.Conn, roles []role) error {
	if len(roles) == 0 {
		return nil
	}
	objects, err := objectsOf(ctx, conn)
	if err != nil {
		return fmt.Errorf("list the objects of the schema: %w", err)
	}
	var database string // quoted
	if err := conn.QueryRow(ctx, "SELECT format('%I', current_database())").Scan(&database); err != nil {
		return fmt.Errorf("read the name of the database: %w", err)
	}
	if _, err := conn.Exec(ctx, "BEGIN;\n"+strings.Join(grantStatements(database, objects, roles), ";\n")+";\nCOMMIT"); err != nil {
		return fmt.Errorf("grant to the roles: %w", err)
	}
	return nil
}

// MissingRevokes returns the statements that are still needed to keep every user from
// creating objects, temporary ones included, in the database. Up runs them itself but may
// lack the privilege: the database may belong to another user, and before Postgres 15 the
// schema belongs to a superuser.
func MissingRevokes(ctx context.Context, conn *pgx.Conn) (needed []string, err error) {
	rows, err := conn.Query(ctx, `
SELECT 'REVOKE CREATE ON SCHEMA public FROM PUBLIC' WHERE has_schema_privilege('public', 'public', 'CREATE')
UNION ALL
SELECT format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database()) WHERE has_database_privilege('public', current_database(), 'TEMPORARY')`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// grantStatements returns the statements of grantAll.
func grantStatements(database string, objects map[string]object, roles []role) (statements []string) {
	var names []string
	for _, r := range roles {
		names = append(names, r.quoted())
	}
	all := strings.Join(names, ", ")
	for _, class := range []string{"TABLE", "SEQUENCE", "FUNCTION"} {
		// Default privileges that this user may have granted on future objects.
		statements = append(statements, fmt.Sprintf("ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE ALL ON %sS FROM %s", class, all))
		var owned []string
		for _, o := range objects {
			if o.class == class {
				owned = append(owned, o.name)
			}
		}
		if len(owned) > 0 {
			slices.Sort(owned) // concurrent migrations lock in the same order
			from := all
			if class == "FUNCTION" {
				from = "PUBLIC, " + all
			}
			statements = append(statements, fmt.Sprintf("REVOKE ALL ON %s %s FROM %s", class, strings.Join(owned, ", "), from))
		}
	}
	statements = append(statements, "REVOKE CREATE ON SCHEMA public FROM PUBLIC, "+all, "GRANT USAGE ON SCHEMA public TO "+all,
		"REVOKE CREATE, TEMPORARY ON DATABASE "+database+" FROM PUBLIC, "+all)
	for _, g := range parseGrants() {
		o, exists := objects[g.object]
		if !exists {
			continue // up was called with fewer files, or this user does not own it
		}
		for _, r := range roles {
			if list := o.expand(g.privileges[r.kind]); list != "" {
				statements = append(statements, fmt.Sprintf("GRANT %s ON %s %s TO %s", list, o.class, o.name, r.quoted()))
			}
		}
	}
	return statements
}

// expand returns abbreviated privileges in the syntax of GRANT.
func (o object) expand(abbreviated string) string {
	var list []string
	for _, part := range privilegePattern.FindAllStringSubmatch(abbreviated, -1) {
		privilege := privilegeNames[part[1]]
		if part[3] != "" {
			named := strings.Split(part[3], ",")
			columns := slices.DeleteFunc(slices.Clone(o.columns), func(c string) bool { return slices.Contains(named, c) == (part[2] == "!") })
			if len(columns) == 0 {
				continue
			}
			for i, c := range columns {
				columns[i] = pgx.Identifier{c}.Sanitize()
			}
			privilege += " (" + strings.Join(columns, ", ") + ")"
		}
		list = append(list, privilege)
	}
	return strings.Join(list, ", ")
}
