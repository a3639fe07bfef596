package migrations_test

import (
	"context"
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

var (
	roles     = sandbox.Roles
	roleNames = []string{roles.Hot, roles.Read, roles.Admin, roles.Retention}
)

// ours are the tables, views, indexes and sequences of the schema, without the partitions,
// whose names depend on the month.
const ours = `(SELECT c.* FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition)`

const columnsSQL = `
SELECT concat_ws(' ', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, array_to_string(c.relacl, ','), array_to_string(a.attacl, ','))
FROM ` + ours + ` c JOIN pg_attribute a ON a.attrelid = c.oid WHERE NOT a.attisdropped ORDER BY c.relname COLLATE "C", a.attnum`

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func queryStrings(t *testing.T, conn *pgx.Conn, query string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), query, args...)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}

// files returns migrations with these numbers. Migration n creates the table t<n>.
func files(numbers ...int) fstest.MapFS {
	fsys := fstest.MapFS{}
	for _, n := range numbers {
		fsys[fmt.Sprintf("%04d_t%d.sql", n, n)] = &fstest.MapFile{Data: fmt.Appendf(nil, "CREATE TABLE t%d (id int);", n)}
	}
	return fsys
}

// embedded returns the embedded migrations with these names.
func embedded(t *testing.T, names []string) fstest.MapFS {
	t.Helper()
	fsys := fstest.MapFS{}
	for _, name := range names {
		text, err := fs.ReadFile(migrations.Files, name)
		require.NoError(t, err)
		fsys[name] = &fstest.MapFile{Data: text}
	}
	return fsys
}

func TestUpOnOlderDatabases(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.Files, "*.sql")
	require.NoError(t, err)
	wantColumns := queryStrings(t, connect(t, sandbox.NewDatabase(t)), columnsSQL)
	upAndCompare := func(t *testing.T, conn *pgx.Conn, missing []string) {
		t.Helper()
		for _, want := range [][]string{missing, {}} {
			applied, err := migrations.Up(t.Context(), conn, roles)
			require.NoError(t, err)
			require.ElementsMatch(t, want, applied)
			require.Equal(t, wantColumns, queryStrings(t, conn, columnsSQL))
		}
	}
	t.Run("one after another", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, sandbox.NewEmptyDatabase(t))
		for k := range names {
			applied, err := migrations.UpWith(t.Context(), conn, embedded(t, names[:k]), roles)
			require.NoError(t, err)
			require.ElementsMatch(t, names[max(k-1, 0):k], applied)
		}
		upAndCompare(t, conn, names[len(names)-1:])
	})
	for _, k := range []int{0, 1, len(names) / 2} {
		t.Run(fmt.Sprintf("the first %d, then all others", k), func(t *testing.T) {
			t.Parallel()
			conn := connect(t, sandbox.NewEmptyDatabase(t))
			_, err := migrations.UpWith(t.Context(), conn, embedded(t, names[:k]), roles)
			require.NoError(t, err)
			upAndCompare(t, conn, names[k:])
		})
	}
}

func TestUpRejectsDatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewEmptyDatabase(t))
	name := conn.Config().Database + "_ascii"
	_, err := conn.Exec(t.Context(), "CREATE DATABASE "+name+" ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = conn.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	config := conn.Config().Copy()
	config.Database = name
	ascii, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	defer ascii.Close(t.Context())
	_, err = migrations.Up(t.Context(), ascii, roles)
	require.ErrorContains(t, err, "SQL_ASCII")
}

func TestUpRejectsWrongFilesOrHistory(t *testing.T) {
	t.Parallel()
	edited, renamed := files(1, 2, 3), files(1, 3)
	edited["0002_t2.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE other ();")}
	renamed["0002_other.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE t2 (id int);")}
	misnamed := files(1, 2, 3)
	misnamed["later.sql"] = &fstest.MapFile{}
	for name, c := range map[string]struct {
		fsys    fs.FS
		removed int // version that is removed from the history of the database
		want    string
	}{
		"a gap between the files": {files(1, 3, 4), 0, "the next number is 0002"},
		"a gap in the history":    {files(1, 2, 3), 2, "the database has version 3 without 2"},
		"a file without a number": {misnamed, 0, "the name must have the form NNNN_words.sql"},
		"an edited file":          {edited, 0, "migration 0002_t2.sql was edited after it was applied"},
		"a missing file":          {renamed, 0, "migration 0002_t2.sql was applied but its file is missing"},
		"a newer database":        {files(1, 2), 0, "the database is at version 3 and this binary has 2"},
		"a binary without files":  {files(), 0, "the database is at version 3 and this binary has 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, sandbox.NewEmptyDatabase(t))
			_, err := migrations.UpWith(t.Context(), conn, files(1, 2, 3), migrations.Roles{})
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), "DELETE FROM schema_migrations WHERE version = $1", c.removed)
			require.NoError(t, err)
			applied, err := migrations.UpWith(t.Context(), conn, c.fsys, migrations.Roles{})
			require.ErrorContains(t, err, c.want)
			require.Empty(t, applied)
		})
	}
}

func TestFailedMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	database := sandbox.NewEmptyDatabase(t)
	conn := connect(t, database)
	broken := files(1, 2)
	broken["0002_t2.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE half (); SELECT 1/0;")}
	applied, err := migrations.UpWith(t.Context(), conn, broken, migrations.Roles{})
	require.ErrorContains(t, err, "migration 0002_t2.sql: ERROR: division by zero")
	require.Equal(t, []string{"0001_t1.sql"}, applied)
	require.Equal(t, []string{"true"}, queryStrings(t, conn, "SELECT (to_regclass('half') IS NULL)::text"))

	applied, err = migrations.UpWith(t.Context(), connect(t, database), files(1, 2), migrations.Roles{})
	require.NoError(t, err, "the failed migration must release the lock")
	require.Equal(t, []string{"0002_t2.sql"}, applied)
}

func TestConcurrentUpsApplyEachFileOnce(t *testing.T) {
	t.Parallel()
	database := sandbox.NewEmptyDatabase(t)
	counts := make([]int, 4)
	var all errgroup.Group
	for i := range counts {
		conn := connect(t, database)
		all.Go(func() error {
			applied, err := migrations.Up(t.Context(), conn, roles)
			counts[i] = len(applied)
			return err
		})
	}
	require.NoError(t, all.Wait())
	names, err := fs.Glob(migrations.Files, "*.sql")
	require.NoError(t, err)
	require.ElementsMatch(t, []int{len(names), 0, 0, 0}, counts)
}

func TestDatabasesMigrateConcurrently(t *testing.T) {
	t.Parallel()
	o := newRoles(t)
	var all errgroup.Group
	for range 4 {
		conn := connect(t, sandbox.NewEmptyDatabase(t))
		all.Go(func() error {
			_, err := migrations.UpWith(t.Context(), conn, files(1), o)
			return err
		})
	}
	require.NoError(t, all.Wait())
}

func TestUpInsertsMissingJobs(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewDatabase(t))
	_, err := conn.Exec(t.Context(), `UPDATE upkeep SET what = what || '.gone'`)
	require.NoError(t, err)
	_, err = migrations.Up(t.Context(), conn, roles)
	require.NoError(t, err)
	require.Subset(t, queryStrings(t, conn, `SELECT what FROM upkeep`), []string{"alerts", "events", "maintenance"})
}

func TestIndexesHaveNamesOfOriginalSMSService(t *testing.T) {
	t.Parallel()
	require.Subset(t, queryStrings(t, connect(t, sandbox.NewDatabase(t)), `SELECT relname::text FROM `+ours+` c WHERE relkind IN ('i', 'I')`), []string{
		"idx_sms_tasks_phone", "idx_sms_templates_active", "idx_default_sms_sent", "idx_receive_logs_created_at", "idx_send_logs_task_id",
		"idx_report_logs_task_id", "uk_business_template_receiver",
	})
}
