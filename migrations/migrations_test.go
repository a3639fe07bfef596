package migrations_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

var roles = migrations.Options{HotRole: sandbox.HotRole, ReadRole: sandbox.ReadRole}

// file makes a migration that creates the table t<n>.
func file(n int) (name string, content *fstest.MapFile) {
	return fmt.Sprintf("%04d_t%d.sql", n, n), &fstest.MapFile{Data: fmt.Appendf(nil, "CREATE TABLE t%d (id int);", n)}
}

func files(numbers ...int) fstest.MapFS {
	fsys := fstest.MapFS{}
	for _, n := range numbers {
		name, content := file(n)
		fsys[name] = content
	}
	return fsys
}

func TestEveryPrefixOfTheFilesLeadsToTheSameSchema(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.Files, "*.sql")
	require.NoError(t, err)
	want := describe(t, connect(t, sandbox.NewDatabase(t)))
	for k := range names {
		t.Run(fmt.Sprintf("the first %d", k), func(t *testing.T) {
			t.Parallel()
			prefix := fstest.MapFS{}
			for _, name := range names[:k] {
				text, err := fs.ReadFile(migrations.Files, name)
				require.NoError(t, err)
				prefix[name] = &fstest.MapFile{Data: text}
			}
			conn := connect(t, sandbox.NewEmptyDatabase(t))
			applied, err := migrations.UpFrom(t.Context(), conn, prefix, roles)
			require.NoError(t, err)
			require.Len(t, applied, k)
			applied, err = migrations.Up(t.Context(), conn, roles)
			require.NoError(t, err)
			require.Equal(t, names[k:], applied)
			require.Equal(t, want, describe(t, conn))
			applied, err = migrations.Up(t.Context(), conn, roles)
			require.NoError(t, err)
			require.Empty(t, applied)
		})
	}
}

func TestAHistoryThatIsNotAPrefixOfTheFilesIsRefused(t *testing.T) {
	t.Parallel()
	edited, renamed := files(1, 2, 3), files(1, 3)
	edited["0002_t2.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE other ();")}
	renamed["0002_other.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE t2 (id int);")}
	misnamed := files(1, 2, 3)
	misnamed["later.sql"] = &fstest.MapFile{}
	for name, c := range map[string]struct {
		fsys fs.FS
		want string
	}{
		"a gap between the files":  {files(1, 3, 4), "the next number is 0002"},
		"a file without a number":  {misnamed, "name it NNNN_words.sql"},
		"an edited file":           {edited, "migration 0002_t2.sql was edited after it was applied"},
		"a missing file":           {renamed, "migration 0002_t2.sql was applied but its file is missing"},
		"a newer database":         {files(1, 2), "the database is at version 3 and this binary knows 2"},
		"a database and no binary": {files(), "the database is at version 3 and this binary knows 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, sandbox.NewEmptyDatabase(t))
			_, err := migrations.UpFrom(t.Context(), conn, files(1, 2, 3), migrations.Options{})
			require.NoError(t, err)
			applied, err := migrations.UpFrom(t.Context(), conn, c.fsys, migrations.Options{})
			require.ErrorContains(t, err, c.want)
			require.Empty(t, applied)
		})
	}
}

func TestAHistoryWithAHoleIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewEmptyDatabase(t))
	_, err := migrations.UpFrom(t.Context(), conn, files(1, 2, 3), migrations.Options{})
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "DELETE FROM schema_migrations WHERE version = 2")
	require.NoError(t, err)
	_, err = migrations.UpFrom(t.Context(), conn, files(1, 2, 3), migrations.Options{})
	require.ErrorContains(t, err, "the database has version 3 without 2")
}

func TestAFileThatFailsLeavesNothingBehindAndKeepsTheOnesBefore(t *testing.T) {
	t.Parallel()
	conn := connect(t, sandbox.NewEmptyDatabase(t))
	broken := files(1, 2)
	broken["0002_t2.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE half (); SELECT 1/0;")}
	applied, err := migrations.UpFrom(t.Context(), conn, broken, migrations.Options{})
	require.ErrorContains(t, err, "migration 0002_t2.sql: ERROR: division by zero")
	require.Equal(t, []string{"0001_t1.sql"}, applied)
	var half bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT to_regclass('half') IS NOT NULL").Scan(&half))
	require.False(t, half)

	applied, err = migrations.UpFrom(t.Context(), conn, files(1, 2), migrations.Options{})
	require.NoError(t, err, "the lock was given back")
	require.Equal(t, []string{"0002_t2.sql"}, applied)
}

func TestUpsThatOverlapApplyEachFileOnce(t *testing.T) {
	t.Parallel()
	database := sandbox.NewEmptyDatabase(t)
	counts := make([]int, 4)
	var all errgroup.Group
	for i := range counts {
		all.Go(func() error {
			conn, err := pgx.Connect(t.Context(), database)
			if err != nil {
				return err
			}
			defer conn.Close(t.Context())
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

func TestDatabasesOfOneClusterMigrateAtTheSameTime(t *testing.T) {
	t.Parallel()
	o := newRoles(t)
	var all errgroup.Group
	for range 4 {
		database := sandbox.NewEmptyDatabase(t)
		all.Go(func() error {
			conn, err := pgx.Connect(t.Context(), database)
			if err != nil {
				return err
			}
			defer conn.Close(t.Context())
			_, err = migrations.UpFrom(t.Context(), conn, files(1), o)
			return err
		})
	}
	require.NoError(t, all.Wait())
}

func TestTheRoles(t *testing.T) {
	t.Parallel()
	o, others := newRoles(t), newRoles(t)
	database := sandbox.NewEmptyDatabase(t)
	owner := connect(t, database)
	_, err := migrations.UpFrom(t.Context(), owner, files(1), o)
	require.NoError(t, err)
	_, err = migrations.UpFrom(t.Context(), owner, files(1, 2), o)
	require.NoError(t, err)

	t.Run("hot writes every table, old and new, and plans by index", func(t *testing.T) {
		conn := connect(t, as(database, o.HotRole))
		_, err := conn.Exec(t.Context(), "INSERT INTO t1 VALUES (1); INSERT INTO t2 VALUES (1); DELETE FROM t2")
		require.NoError(t, err)
		for setting, want := range map[string]string{
			"plan_cache_mode": "force_custom_plan", "enable_seqscan": "off", "enable_sort": "off", "enable_bitmapscan": "off", "jit": "off",
			"lock_timeout": "2s", "statement_timeout": "5s", "idle_in_transaction_session_timeout": "10s",
		} {
			var got string
			require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got))
			require.Equal(t, want, got, setting)
		}
	})
	t.Run("hot does not rewrite the history", func(t *testing.T) {
		_, err := connect(t, as(database, o.HotRole)).Exec(t.Context(), "DELETE FROM schema_migrations")
		require.ErrorContains(t, err, "permission denied")
	})
	t.Run("read reads and does not write", func(t *testing.T) {
		conn := connect(t, as(database, o.ReadRole))
		_, err := conn.Exec(t.Context(), "SELECT * FROM t1, t2, schema_migrations")
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "DELETE FROM t1")
		require.ErrorContains(t, err, "read-only transaction")
		_, err = conn.Exec(t.Context(), "SET default_transaction_read_only = off")
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "DELETE FROM t1")
		require.ErrorContains(t, err, "permission denied")
	})
	t.Run("a user that may not make roles is told what an administrator must run", func(t *testing.T) {
		poor := others.HotRole
		_, err := owner.Exec(t.Context(), fmt.Sprintf(
			"CREATE ROLE %s LOGIN PASSWORD '%s'; GRANT ALL ON SCHEMA public TO %[1]s; GRANT SELECT ON schema_migrations TO %[1]s", poor, password))
		require.NoError(t, err)
		conn := connect(t, as(database, poor))
		_, err = migrations.UpFrom(t.Context(), conn, files(1, 2), migrations.Options{HotRole: others.ReadRole})
		require.ErrorContains(t, err, "let an administrator run `CREATE ROLE")
		require.ErrorContains(t, err, "SET lock_timeout = '2s'")
		_, err = migrations.UpFrom(t.Context(), conn, files(1, 2), migrations.Options{})
		require.NoError(t, err, "without roles nothing but its own rights is needed")
	})
}

const password = `it is "secret" \ 100`

// newRoles gives roles that no other test knows. They are dropped after the
// databases that the test makes later.
func newRoles(t *testing.T) migrations.Options {
	t.Helper()
	suffix := strings.ToLower(rand.Text()[:12])
	o := migrations.Options{HotRole: "hot_" + suffix, ReadRole: "read_" + suffix, Password: password}
	admin := sandbox.SharedPostgres(t).URL("postgres")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), admin)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(context.Background(), fmt.Sprintf("DROP ROLE IF EXISTS %s, %s", o.HotRole, o.ReadRole))
		require.NoError(t, err)
	})
	return o
}

// as is database's URL for another user.
func as(database, user string) string {
	u, err := url.Parse(database)
	if err != nil {
		return ""
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}
