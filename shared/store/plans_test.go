package store

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// statements is every SQL constant of this package, by name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	exprs := map[string]ast.Expr{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, spec := range g.Specs {
					v := spec.(*ast.ValueSpec)
					for i, name := range v.Names {
						if i < len(v.Values) {
							exprs[name.Name] = v.Values[i]
						}
					}
				}
			}
		}
	}
	var text func(e ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(e.Value); err == nil {
				return s
			}
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			return text(exprs[e.Name])
		}
		return ""
	}
	all := map[string]string{}
	for name, e := range exprs {
		if strings.HasSuffix(name, "SQL") {
			all[name] = text(e)
		}
	}
	return all
}

func asRole(t *testing.T, url, role string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	cfg.User = role
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func TestEveryStatementPreparesAgainstTheMigratedSchema(t *testing.T) {
	t.Parallel()
	conn := asRole(t, sandbox.NewDatabase(t), "sendonce_hot")
	all := statements(t)
	require.Greater(t, len(all), 15)
	for name, sql := range all {
		_, err := conn.Prepare(t.Context(), name, sql)
		require.NoError(t, err, name)
	}
}

// The plan cliff: statements prepared and used while the tables were empty
// must still go by index when 50,000 rows arrive before any ANALYZE.
func TestPlansMadeOnEmptyTablesStillUseTheIndexes(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	conn := asRole(t, url, "sendonce_hot")
	all := statements(t)
	id := fmt.Sprintf("'%s'", task.NewID())
	ids := fmt.Sprintf("array[%s::uuid]", id)
	cases := map[string]string{ // parameters of EXECUTE
		"claimSQL":        `'default', 10, 'app', 60, false, '{}', 1`,
		"claimAboveSQL":   `'default', 10, 'app', 60, false, '{}', 1, array[5]::smallint[], array[0]::smallint[], array['00000000-0000-0000-0000-000000000000']::uuid[]`,
		"lockDueSQL":      `100`,
		"lockLiveSQL":     ids,
		"lockDoneSQL":     ids,
		"deleteLiveSQL":   ids,
		"updateLiveSQL":   ids + `, array[1]::smallint[], array[1]::smallint[], array[null]::timestamptz[], array[1]::smallint[], array['']::text[], array['']::text[]`,
		"extendSQL":       id + `, 'app', 0, 60, false, array[]::text[]`,
		"detailSQL":       id,
		"firstCallsSQL":   ids + `, ` + ids,
		"knownKeysSQL":    ids,
		"knownTasksSQL":   ids,
		"callerByNameSQL": `'x'`,
		"lockDefaultsSQL": `array['13800138000']::varchar[]`,
	}
	_, err := owner(t, url).Exec(t.Context(), `vacuum analyze`)
	require.NoError(t, err)
	for name, args := range cases {
		_, err := conn.Exec(t.Context(), `prepare `+name+` as `+all[name])
		require.NoError(t, err, name)
		for range 10 {
			_, err = conn.Exec(t.Context(), `execute `+name+`(`+args+`)`)
			require.NoError(t, err, name)
		}
	}
	_, err = owner(t, url).Exec(t.Context(), `
		set session_replication_role = replica;
		alter table task_live set (autovacuum_enabled = off); alter table tasks set (autovacuum_enabled = off); alter table task_done set (autovacuum_enabled = off);
		insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
			select gen_random_uuid(), 0, 'default', 5, 3, 0, '13800138000', 'x' from generate_series(1, 50000);
		insert into task_live (id, state, priority, max_retries, on_unknown, queue)
			select id, 1, 5, 3, 0, 'default' from tasks limit 40000;
		insert into task_done (id, status, reason, retry_count, ended) select id, 2, 0, 0, 0 from tasks offset 40000;
		insert into submission_keys select id, id, id from tasks`)
	require.NoError(t, err)
	for name, args := range cases {
		rows, err := conn.Query(t.Context(), `explain execute `+name+`(`+args+`)`)
		require.NoError(t, err, name)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, name)
		plan := strings.Join(lines, "\n")
		for _, table := range []string{"tasks", "task_live", "task_done", "submission_keys"} {
			require.NotContains(t, plan, "Seq Scan on "+table, "%s\n%s", name, plan)
		}
		require.NotContains(t, plan, "Bitmap Heap Scan", "%s\n%s", name, plan)
		if name == "claimSQL" || name == "claimAboveSQL" {
			require.Contains(t, plan, "task_live_ready", "%s\n%s", name, plan)
			require.NotContains(t, plan, "Sort", "%s\n%s", name, plan)
		}
		if name == "lockDueSQL" {
			require.Contains(t, plan, "task_live_due", "%s\n%s", name, plan)
		}
	}
}
