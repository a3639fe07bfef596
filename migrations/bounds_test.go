package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// unbounded lists the values of outOfBounds that columns accept, as "<column> <name of the value>", each with the reason.
var unbounded = map[string]string{
	"event_outbox.next_at -infinity":                 "the default: due",
	"upkeep.begun_at -infinity":                      "the default: never begun",
	"tasks.send_at zero":                             "chosen by a caller; Go reads it as the zero time",
	"archived_tasks.send_at zero":                    "likewise",
	"task_done.sent_at zero":                         "likewise",
	"archived_tasks.sent_at zero":                    "likewise",
	"messages.sent_at zero":                          "likewise",
	"archived_messages.sent_at zero":                 "likewise",
	"subscribe_message_logs.send_time zero":          "likewise",
	"archived_subscribe_message_logs.send_time zero": "likewise",
	"subscribe_total_changes.day zero":               "the day of a send_time",
	"subscribe_totals.day zero":                      "likewise",
	"receive_logs.request_data":                      "logs are read in pages of bounded length",
	"receive_logs.request_data digits":               "likewise",
	"receive_logs.response_data":                     "likewise",
	"receive_logs.response_data digits":              "likewise",
	"report_logs.request_data":                       "likewise",
	"report_logs.request_data digits":                "likewise",
	"report_logs.verdict":                            "likewise",
	"send_logs.request_data":                         "likewise",
	"send_logs.request_data digits":                  "likewise",
	"send_logs.response_data":                        "likewise",
	"send_logs.response_data digits":                 "likewise",
}

// writableSQL lists the columns that the roles of the functions can write, with their types,
// except columns of a type with a length, such as varchar(50), which limits them.
const writableSQL = `
SELECT c.relname::text, a.attname::text, format_type(a.atttypid, NULL) FROM ` + ours + ` c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.atttypmod = -1
WHERE c.relkind IN ('r', 'p') AND EXISTS (SELECT FROM unnest($1::text[]) role WHERE has_column_privilege(role, c.oid, a.attnum, 'INSERT, UPDATE'))
ORDER BY 1, a.attnum`

// outOfBounds has values that no column may accept, as SQL, by type and name of the value.
var outOfBounds = map[string]map[string]string{
	"timestamp with time zone": {"infinity": "'infinity'", "-infinity": "'-infinity'", "year 10000": "'10000-01-01 00:00:00+00'", "zero": "'0001-01-01 00:00:00+00'"},
	"date":                     {"infinity": "'infinity'", "-infinity": "'-infinity'", "year 10000": "'10000-01-01'", "zero": "'0001-01-01'"},
	"double precision":         {"infinity": "'Infinity'", "-infinity": "'-Infinity'", "NaN": "'NaN'"},
	"text":                     {"": "repeat('x', 2097153)"},
	"character varying":        {"": "repeat('x', 2097153)"},
	"bytea":                    {"": "repeat('x', 2097153)::bytea"},
	"jsonb":                    {"": "to_jsonb(repeat('x', 2097153))", "digits": "('[' || repeat('1e131071,', 20) || '1]')::jsonb"}, // 300 bytes that are read as 2.6 MB
	"json":                     {"": "to_json(repeat('x', 2097153))"},
	"text[]":                   {"": "array[repeat('x', 2097153)]", "null": "array[null]::text[]"},
	"uuid[]":                   {"": "array_fill(gen_random_uuid(), array[131073])", "null": "array[null]::uuid[]"},
	// Go can read every value of these types, and all have a fixed size.
	"bigint": {}, "integer": {}, "smallint": {}, "boolean": {}, "uuid": {},
}

// One row with a value that is too large, that Go cannot read, or that Go reads as the zero
// value would make a function fail for all callers.
func TestFunctionsCannotWriteValuesOutOfBounds(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	var accepted []string
	for _, column := range columnsWritableBy(t, conn, roleNames...) {
		table, name, sqlType := column[0], column[1], column[2]
		values, known := outOfBounds[sqlType]
		require.True(t, known, "%s.%s: add the type %[3]s to outOfBounds, with the values that a function could not read", table, name, sqlType)
		for valueName, value := range values {
			key := strings.TrimSpace(table + "." + name + " " + valueName)
			if unbounded[key] == "" && accepts(t, conn, table, name, value) {
				accepted = append(accepted, key)
			}
		}
	}
	require.Empty(t, accepted, "extend the constraint <table>_bounds in a migration, or list the value in unbounded")

	_, err := conn.Exec(t.Context(), `CREATE TABLE fresh (at timestamptz); GRANT INSERT ON fresh TO `+sandbox.Roles.Hot)
	require.NoError(t, err)
	require.Contains(t, columnsWritableBy(t, conn, roleNames...), [3]string{"fresh", "at", "timestamp with time zone"})
	require.True(t, accepts(t, conn, "fresh", "at", "'infinity'"), "the test must detect a column without bounds")
}

// The API and its clients accept no negative id, and Go reads sequence numbers of streams as uint64. So one row with a
// negative number would make lists and functions that read the row fail.
func TestFunctionsCannotWriteNegativeIDs(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	var accepted []string
	for _, column := range columnsWritableBy(t, conn, sandbox.Roles.Hot) {
		table, name, sqlType := column[0], column[1], column[2]
		isID := strings.HasSuffix(name, "_id") || name == "claimed_by" || // columns named id are generated
			strings.HasSuffix(name, "seq") || name == "looked_taken"
		if sqlType == "bigint" && isID && accepts(t, conn, table, name, "-2") {
			accepted = append(accepted, table+"."+name)
		}
	}
	require.Empty(t, accepted, "extend the constraint <table>_bounds in a migration")
}

// The overview adds up the counters, and the relay has all events of one row in memory.
func TestFunctionsCannotWriteExtremeCounts(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	for _, row := range [][3]string{
		{"overview_totals", "n", "-1"}, {"overview_throughput", "submitted", "-1"}, {"overview_throughput", "succeeded", "-1"}, {"overview_throughput", "failed", "-1"},
		{"event_outbox", "ids", "array_fill(gen_random_uuid(), array[10001])"},
	} {
		require.NotNil(t, tryInsert(t, conn, row[0], row[1], row[2]), "%s.%s", row[0], row[1])
	}
	require.Nil(t, tryInsert(t, conn, "event_outbox", "ids", "array_fill(gen_random_uuid(), array[10000])"))
}

// Go panics at the name of an unknown state. So one row with an unknown state would make lists that show the row fail.
func TestFunctionsCannotWriteUnknownStates(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	var accepted []string
	for _, column := range columnsWritableBy(t, conn, sandbox.Roles.Hot) {
		table, name, sqlType := column[0], column[1], column[2]
		isState := name == "state" || name == "status" || name == "send_status"
		if sqlType == "smallint" && isState && tryInsert(t, conn, table, name, "99") == nil {
			accepted = append(accepted, table+"."+name)
		}
	}
	require.Empty(t, accepted, "add a constraint in a migration")
}

func columnsWritableBy(t *testing.T, conn *pgx.Conn, roles ...string) [][3]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), writableSQL, roles)
	require.NoError(t, err)
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c [3]string, err error) { return c, row.Scan(&c[0], &c[1], &c[2]) })
	require.NoError(t, err)
	return columns
}

// accepts reports whether the constraints of a table accept a row with this value in one
// column and null in all others. The test fails if another constraint than <table>_bounds refuses the row.
func accepts(t *testing.T, conn *pgx.Conn, table, column, value string) bool {
	t.Helper()
	refused := tryInsert(t, conn, table, column, value)
	if refused != nil {
		require.Equal(t, table+"_bounds", refused.ConstraintName)
	}
	return refused == nil
}

// tryInsert returns the error with which the constraints of a table refuse a row with this value in one
// column and null in all others; nil = they accept the row. It inserts into a temporary copy of the table.
func tryInsert(t *testing.T, conn *pgx.Conn, table, column, value string) *pgconn.PgError {
	t.Helper()
	_, err := conn.Exec(t.Context(), strings.ReplaceAll(`
		DO $$ DECLARE c name; BEGIN
			IF to_regclass('pg_temp.$table') IS NULL THEN
				CREATE TEMP TABLE $table (LIKE public.$table INCLUDING CONSTRAINTS);
				FOR c IN SELECT attname FROM pg_attribute WHERE attrelid = 'pg_temp.$table'::regclass AND attnum > 0 LOOP
					EXECUTE format('ALTER TABLE pg_temp.$table ALTER %I DROP NOT NULL', c);
				END LOOP;
			END IF;
		END $$`, "$table", table)+"; INSERT INTO pg_temp."+table+" ("+column+") VALUES ("+value+")")
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		require.Equal(t, "23514", refused.Code, "%s.%s = %s: %v", table, column, value, err)
		return refused
	}
	require.NoError(t, err)
	return nil
}
