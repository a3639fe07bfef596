package migrations_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/migrations"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestHotRoleHasSettings(t *testing.T) {
	t.Parallel()
	conn := connectAs(t, sandbox.NewDatabase(t), sandbox.Roles.Hot, sandbox.Roles.HotPassword)
	for setting, want := range map[string]string{
		"plan_cache_mode": "force_custom_plan", "enable_seqscan": "off", "enable_sort": "off", "enable_bitmapscan": "off", "jit": "off",
		"lock_timeout": "2s", "statement_timeout": "5s", "idle_in_transaction_session_timeout": "10s",
	} {
		var got string
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}
}

func TestRolesHaveSeparatePasswords(t *testing.T) {
	t.Parallel()
	o, database, owner := newMigrated(t)
	passwords := passwordsOf(o)
	for role := range passwords {
		for passwordRole, password := range passwords {
			conn, err := login(t, database, role, password)
			if role == passwordRole {
				require.NoError(t, err)
				require.NoError(t, conn.Close(t.Context()))
				continue
			}
			require.ErrorContains(t, err, "password authentication failed")
		}
	}

	oldPassword := o.ReadPassword
	o.HotPassword, o.ReadPassword = "", "another"
	_, err := migrations.Up(t.Context(), owner, o)
	require.NoError(t, err)
	for role, password := range map[string]string{o.Hot: passwords[o.Hot], o.Read: "another"} {
		connectAs(t, database, role, password)
	}
	_, err = login(t, database, o.Read, oldPassword)
	require.ErrorContains(t, err, "password authentication failed")
}

func TestCreateRoleErrors(t *testing.T) {
	t.Parallel()
	database := sandbox.NewEmptyDatabase(t)
	owner := connect(t, database)
	t.Run("without a password", func(t *testing.T) {
		o := newRoles(t)
		o.AdminPassword = ""
		_, err := migrations.UpWith(t.Context(), owner, files(1), o)
		require.ErrorContains(t, err, "role "+o.Admin+": it does not exist and SENDONCE_ADMIN_PASSWORD is not set")
	})
	t.Run("with a password that clients encode differently", func(t *testing.T) {
		o := newRoles(t)
		o.ReadPassword = "密码"
		_, err := migrations.UpWith(t.Context(), owner, files(1), o)
		require.ErrorContains(t, err, "SENDONCE_READ_PASSWORD: must be of printable ASCII characters")
	})
	t.Run("with the name of the owner", func(t *testing.T) {
		_, err := migrations.UpWith(t.Context(), owner, files(1), migrations.Roles{Hot: sandbox.Owner, HotPassword: "x"})
		require.ErrorContains(t, err, "it has all privileges of the owner of the tables: set SENDONCE_HOT_ROLE to another name")
	})
	t.Run("by a user that may not create roles", func(t *testing.T) {
		o, others := newRoles(t), newRoles(t)
		database := sandbox.NewEmptyDatabase(t)
		owner := connect(t, database)
		_, err := migrations.UpWith(t.Context(), owner, files(1), migrations.Roles{})
		require.NoError(t, err)
		unprivileged := others.Hot
		_, err = owner.Exec(t.Context(), fmt.Sprintf(
			"CREATE ROLE %s LOGIN PASSWORD 'x'; GRANT ALL ON SCHEMA public TO %[1]s; GRANT SELECT ON schema_migrations TO %[1]s", unprivileged))
		require.NoError(t, err)
		conn := connectAs(t, database, unprivileged, "x")
		_, err = migrations.UpWith(t.Context(), conn, files(1), migrations.Roles{Hot: o.Hot, HotPassword: o.HotPassword})
		require.ErrorContains(t, err, "let an administrator run `CREATE ROLE")
		require.ErrorContains(t, err, "SET lock_timeout = '2s'")
		require.ErrorContains(t, err, "leave SENDONCE_HOT_PASSWORD out of the settings of migrate")

		needed := strings.Split(err.Error(), "`")[1]
		_, err = owner.Exec(t.Context(), needed)
		require.NoError(t, err)
		_, err = migrations.UpWith(t.Context(), conn, files(1), migrations.Roles{Hot: o.Hot})
		require.NoError(t, err, "a role that an administrator created is used unchanged")
		_, err = migrations.UpWith(t.Context(), conn, files(1), migrations.Roles{})
		require.NoError(t, err, "without roles, Up needs no right to create roles")
	})
}

// newRoles returns roles that only this test uses. The end of the test drops them, after the
// databases that the test has created since.
func newRoles(t *testing.T) migrations.Roles {
	t.Helper()
	suffix := strings.ToLower(rand.Text()[:12])
	o := migrations.Roles{
		Hot: "hot_" + suffix, HotPassword: `it-is-"secret"-\100'`, Read: "read_" + suffix, ReadPassword: "read",
		Admin: "admin_" + suffix, AdminPassword: "admin", Retention: "retention_" + suffix, RetentionPassword: "retention",
	}
	admin := sandbox.SharedPostgres(t).URL("postgres")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), admin)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(context.Background(), fmt.Sprintf("DROP ROLE IF EXISTS %s, %s, %s, %s", o.Hot, o.Read, o.Admin, o.Retention))
		require.NoError(t, err)
	})
	return o
}

// passwordsOf returns the password of each role by its name.
func passwordsOf(o migrations.Roles) map[string]string {
	return map[string]string{o.Hot: o.HotPassword, o.Read: o.ReadPassword, o.Admin: o.AdminPassword, o.Retention: o.RetentionPassword}
}

// newMigrated returns a new database with all tables and new roles, and a session of its owner.
func newMigrated(t *testing.T) (o migrations.Roles, database string, owner *pgx.Conn) {
	t.Helper()
	o = newRoles(t)
	database = sandbox.NewEmptyDatabase(t)
	owner = connect(t, database)
	_, err := migrations.Up(t.Context(), owner, o)
	require.NoError(t, err)
	return o, database, owner
}

func login(t *testing.T, database, role, password string) (*pgx.Conn, error) {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	require.NoError(t, err)
	config.User, config.Password = role, password
	return pgx.ConnectConfig(t.Context(), config)
}

// connectAs returns a session of a role.
func connectAs(t *testing.T, database, role, password string) *pgx.Conn {
	t.Helper()
	conn, err := login(t, database, role, password)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestTemporaryTablesDoNotShadowOurs(t *testing.T) {
	t.Parallel()
	o := newRoles(t)
	database := sandbox.NewEmptyDatabase(t)
	owner := connect(t, database)
	grantTemporaryToPublic := func() {
		_, err := owner.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO PUBLIC', current_database()); END $$`)
		require.NoError(t, err)
	}
	grantTemporaryToPublic() // the default of a new database
	needed, err := migrations.MissingRevokes(t.Context(), owner)
	require.NoError(t, err)
	require.Regexp(t, `REVOKE TEMPORARY ON DATABASE \w+ FROM PUBLIC`, strings.Join(needed, "; "))
	_, err = migrations.Up(t.Context(), owner, o)
	require.NoError(t, err)
	needed, err = migrations.MissingRevokes(t.Context(), owner)
	require.NoError(t, err)
	require.Empty(t, needed)
	passwords := passwordsOf(o)
	for role, password := range passwords {
		_, err := connectAs(t, database, role, password).Exec(t.Context(), `BEGIN READ WRITE; CREATE TEMP VIEW callers AS SELECT 1 AS id; COMMIT`)
		require.ErrorContains(t, err, "permission denied to create temporary tables")
	}

	grantTemporaryToPublic() // as if migrate had no right to revoke it
	for role, password := range passwords {
		conn := connectAs(t, database, role, password)
		_, err := conn.Exec(t.Context(), `BEGIN READ WRITE; CREATE TEMP VIEW callers AS SELECT 1 AS id; COMMIT`)
		require.NoError(t, err)
		require.Equal(t, []string{"public"}, queryStrings(t, conn, `SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = 'callers'::regclass`), role)
	}
}

func TestRoleSettingsAreReset(t *testing.T) {
	t.Parallel()
	o, database, owner := newMigrated(t)
	const settingsSQL = `SELECT unnest(setconfig) || CASE WHEN setdatabase = 0 THEN '' ELSE ' in the database' END FROM pg_db_role_setting
		WHERE setrole = $1::regrole ORDER BY 1`
	before := queryStrings(t, owner, settingsSQL, o.Hot)

	hot := connectAs(t, database, o.Hot, o.HotPassword)
	var err error
	for _, sql := range []string{
		"SET synchronous_commit = off", "SET default_transaction_read_only = on", "SET search_path = pg_temp",
		"SET statement_timeout = 1", "RESET enable_seqscan", "PASSWORD 'x'",
	} {
		_, err = hot.Exec(t.Context(), "ALTER ROLE current_user "+sql)
		require.NoError(t, err, sql)
	}
	_, err = hot.Exec(t.Context(), `DO $$ BEGIN
		EXECUTE format('ALTER ROLE current_user IN DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	require.NoError(t, err)
	_, err = login(t, database, o.Hot, o.HotPassword)
	require.ErrorContains(t, err, "password authentication failed")

	_, err = migrations.Up(t.Context(), owner, o)
	require.NoError(t, err)
	require.Equal(t, before, queryStrings(t, owner, settingsSQL, o.Hot))
	conn := connectAs(t, database, o.Hot, o.HotPassword)
	require.Equal(t, []string{"on off 5s"}, queryStrings(t, conn,
		"SELECT concat_ws(' ', current_setting('synchronous_commit'), current_setting('default_transaction_read_only'), current_setting('statement_timeout'))"))
	connectAs(t, database, o.Read, o.ReadPassword)
}

func TestMigrateReportsLockHolder(t *testing.T) {
	t.Parallel()
	o, database, owner := newMigrated(t)
	hot := connectAs(t, database, o.Hot, o.HotPassword)
	_, err := hot.Exec(t.Context(), "SELECT pg_advisory_lock($1)", migrations.LockID)
	require.NoError(t, err)

	_, err = owner.Exec(t.Context(), "SET lock_timeout = '50ms'")
	require.NoError(t, err)
	_, err = migrations.Up(t.Context(), owner, o)
	require.ErrorContains(t, err, fmt.Sprintf("process %d of user %s", hot.PgConn().PID(), o.Hot))
	require.ErrorContains(t, err, fmt.Sprintf("SELECT pg_terminate_backend(%d)", hot.PgConn().PID()))

	_, err = hot.Exec(t.Context(), "SELECT pg_advisory_unlock($1)", migrations.LockID)
	require.NoError(t, err)
	_, err = migrations.Up(t.Context(), owner, o)
	require.NoError(t, err)
	require.Equal(t, []string{"50ms"}, queryStrings(t, owner, "SHOW lock_timeout"))
}
