package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// uncommented lists the tables, views and coded columns that have no comment. A column is coded if its type is smallint,
// "char" or an enum, if a constraint lists its values, or if its name is or ends with a word such as kind or status.
const uncommented = `
WITH relation AS (
	SELECT c.oid, c.relname, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind
	FROM ` + ours + ` c WHERE c.relkind IN ('r', 'p', 'v', 'm')
)
SELECT format('COMMENT ON %s %I', kind, relname) FROM relation WHERE obj_description(oid, 'pg_class') IS NULL
UNION ALL
SELECT format('COMMENT ON COLUMN %I.%I', r.relname, a.attname)
FROM relation r
JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
WHERE col_description(r.oid, a.attnum) IS NULL
	AND (t.typname IN ('int2', 'char') OR t.typtype = 'e'
		OR a.attname ~ '(^|_)(kind|state|status|reason|action|verdict|what|roles|events|event_type)$'
		OR EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = r.oid AND k.contype = 'c' AND k.conkey = ARRAY[a.attnum]
			AND pg_get_constraintdef(k.oid) ~ '= ANY \(ARRAY\['))
ORDER BY 1`

func TestTablesAndCodedColumnsHaveComments(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	require.Empty(t, queryStrings(t, conn, uncommented),
		"each of these needs a line `… IS 'meaning';` in the migration that adds it; a code with each of its values, such as '0 pending, 1 delivered.'")

	_, err := conn.Exec(t.Context(), `CREATE TABLE fresh (id bigint, level smallint, outcome text CHECK (outcome IN ('a', 'b')), kind text, free text);
		CREATE VIEW fresher AS SELECT id, 1 AS status FROM fresh`)
	require.NoError(t, err)
	require.Equal(t, []string{
		"COMMENT ON COLUMN fresh.kind", "COMMENT ON COLUMN fresh.level", "COMMENT ON COLUMN fresh.outcome", "COMMENT ON COLUMN fresher.status",
		"COMMENT ON TABLE fresh", "COMMENT ON VIEW fresher",
	}, queryStrings(t, conn, uncommented), "the test must detect missing comments")
}

// numbered lists the values of a code in the form of comments: 0 resend, 1 hold, 2 fail. The column stores the Go value
// minus offset.
func numbered[V interface {
	~int16
	fmt.Stringer
}](first, last V, offset int) string {
	var values []string
	for v := first; v <= last; v++ {
		values = append(values, fmt.Sprintf("%d %s", int(v)-offset, v))
	}
	return strings.Join(values, ", ")
}

func TestCommentsMatchDomainConstants(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	policies := numbered(task.Resend, task.Fail, 0)
	reasons := numbered(task.Rejected, task.Cancelled, 0)
	results := numbered(task.Succeeded, task.Failed, 2)
	for column, want := range map[string]string{
		"tasks.on_unknown":          policies,
		"task_live.on_unknown":      policies,
		"archived_tasks.on_unknown": policies,
		"task_live.state":           numbered(task.Scheduled, task.Held, 0),
		"task_done.status":          results,
		"archived_tasks.status":     results,
		"task_done.reason":          reasons,
		"archived_tasks.reason":     reasons,
		"message_live.status":       numbered(message.Sending, message.Sent, 0),
		"reliable_messages.status":  numbered(message.Sending, message.Received, 0),
		"webhook_deliveries.state":  numbered(message.DeliveryPending, message.DeliveryFailed, 0),
	} {
		table, name, _ := strings.Cut(column, ".")
		var comment string
		require.NoError(t, conn.QueryRow(t.Context(),
			`SELECT col_description(attrelid, attnum) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2`, table, name).Scan(&comment), column)
		require.Contains(t, comment, want, column)
	}
}
