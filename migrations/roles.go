package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// kind identifies one of the roles. Its value is the column of the role in grants.
type kind int

const (
	hot kind = iota + 1
	admin
	read
	retention
)

const (
	insufficientPrivilege = "42501"
	duplicateObject       = "42710"
	uniqueViolation       = "23505"
	internalError         = "XX000"
)

// Roles are the names and passwords of the database roles that Up creates. A role with an
// empty name is not created. If the password of a role is empty, the role must exist already
// and keeps its password. The privileges of each role are in grants.go.
type Roles struct {
	Hot, HotPassword             string // for the functions that submit, claim and finish work
	Read, ReadPassword           string // for lists and statistics
	Admin, AdminPassword         string // for changing callers, templates and other settings
	Retention, RetentionPassword string // for archiving and deleting old rows
}

// role is a login role with its planner and timeout settings. They are settings of the
// role because a pooler rejects them as connection parameters.
type role struct {
	kind     kind
	name     string
	password string
	prefix   string // of its environment variables, such as SENDONCE_HOT of SENDONCE_HOT_PASSWORD
	settings []string
}

// commonSettings make Postgres write values in the form that pgx parses, whatever the settings
// of the database are. They also make it find our tables before temporary ones: if search_path
// did not contain pg_temp, Postgres would search pg_temp first.
var commonSettings = []string{"bytea_output=hex", "DateStyle=ISO", "extra_float_digits=1", "search_path=public, pg_temp"}

// indexSettings make plans use indexes even if Postgres believes that a table is still empty:
// a sequential scan would be slow once the table has filled. They also limit waits.
var indexSettings = append([]string{
	"plan_cache_mode=force_custom_plan", "enable_seqscan=off", "enable_sort=off", "enable_bitmapscan=off", "jit=off",
	"lock_timeout=2s", "statement_timeout=5s", "idle_in_transaction_session_timeout=10s",
}, commonSettings...)

var readOnlySettings = append([]string{
	"default_transaction_read_only=on", "statement_timeout=15s", "idle_in_transaction_session_timeout=10s", "jit=off",
}, commonSettings...)

func (r Roles) all() []role {
	roles := []role{
		{hot, r.Hot, r.HotPassword, "SENDONCE_HOT", indexSettings},
		{admin, r.Admin, r.AdminPassword, "SENDONCE_ADMIN", indexSettings},
		{read, r.Read, r.ReadPassword, "SENDONCE_READ", readOnlySettings},
		{retention, r.Retention, r.RetentionPassword, "SENDONCE_RETENTION", indexSettings},
	}
	return slices.DeleteFunc(roles, func(r role) bool { return r.name == "" })
}

func (r role) quoted() string { return pgx.Identifier{r.name}.Sanitize() }

// makeRoles creates the roles that do not exist, and resets the settings of all roles and the
// passwords that are given, because a role may change its own. It alters settings only if they
// differ: roles belong to the whole server, and the migration of another database on this
// server may alter them at the same time.
func makeRoles(ctx context.Context, conn *pgx.Conn, roles []role) error {
	for _, r := range roles {
		changes, err := r.changes(ctx, conn)
		if err != nil {
			return fmt.Errorf("role %s: %w", r.name, err)
		}
		statements := changes
		if r.password != "" {
			secret, err := ScramSecret(r.password, scramIterations)
			if err != nil {
				return fmt.Errorf("%s_PASSWORD: %w", r.prefix, err)
			}
			statements = append(statements, fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", r.quoted(), secret))
		}
		for _, sql := range statements {
			if err := alterRole(ctx, conn, sql); err != nil {
				return r.explain(err, changes)
			}
		}
	}
	return nil
}

const roleSQL = `
SELECT rolcanlogin, coalesce(rolconfig, '{}'), rolsuper OR pg_has_role(oid, current_user, 'MEMBER'), format('%I', current_database()),
	EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE s.setrole = r.oid AND d.datname = current_database())
FROM pg_roles r WHERE rolname = $1`

// changes returns the statements that are needed to create the role, let it log in and correct
// its settings.
func (r role) changes(ctx context.Context, conn *pgx.Conn) (statements []string, err error) {
	var canLogin, hasOwnerPrivileges, hasDatabaseSettings bool
	var database string
	var settings []string
	err = conn.QueryRow(ctx, roleSQL, r.name).Scan(&canLogin, &settings, &hasOwnerPrivileges, &database, &hasDatabaseSettings)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && r.password == "":
		return nil, fmt.Errorf("it does not exist and %[1]s_PASSWORD is not set: set it, or set SENDONCE_HOT_ROLE and SENDONCE_READ_ROLE to nothing, so that everything logs in as the user of DATABASE_URL",
			r.prefix)
	case errors.Is(err, pgx.ErrNoRows):
		statements = append(statements, "CREATE ROLE "+r.quoted()+" LOGIN")
	case err != nil:
		return nil, err
	case hasOwnerPrivileges:
		return nil, fmt.Errorf("it has all privileges of the owner of the tables: set %s_ROLE to another name", r.prefix)
	case !canLogin:
		statements = append(statements, "ALTER ROLE "+r.quoted()+" LOGIN")
	}
	if hasDatabaseSettings {
		statements = append(statements, "ALTER ROLE "+r.quoted()+" IN DATABASE "+database+" RESET ALL")
	}
	slices.Sort(settings)
	if !slices.Equal(settings, slices.Sorted(slices.Values(r.settings))) {
		// One string of statements is one transaction: no session starts with some of the settings.
		set := "ALTER ROLE " + r.quoted() + " RESET ALL"
		for _, setting := range r.settings {
			name, value, _ := strings.Cut(setting, "=")
			// search_path needs each of its names quoted: 'public, pg_temp' would be one name.
			set += fmt.Sprintf("; ALTER ROLE %s SET %s = '%s'", r.quoted(), name, strings.ReplaceAll(value, ", ", "', '"))
		}
		statements = append(statements, set)
	}
	return statements, nil
}

// alterRole runs sql, and retries it for 10 s while the migration of another database
// changes the same role. If sql creates a role that exists by now, there is no error.
func alterRole(ctx context.Context, conn *pgx.Conn, sql string) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		_, err := conn.Exec(ctx, sql)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) {
			return err
		}
		switch {
		case strings.HasPrefix(sql, "CREATE") && (refused.Code == duplicateObject || refused.Code == uniqueViolation):
			return nil
		case refused.Code != internalError && refused.Code != uniqueViolation || time.Now().After(deadline):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// explain returns err with the name of the role. If the connected user may not change roles,
// the error says what to do; changes are the statements that the role needs besides its
// password.
func (r role) explain(err error, changes []string) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != insufficientPrivilege {
		return fmt.Errorf("role %s: %w", r.name, err)
	}
	needed := ""
	if len(changes) > 0 {
		needed = "run `" + strings.Join(changes, "; ") + ";`, "
	}
	return fmt.Errorf("this user may not change role %s (%s): let an administrator %sgive the role a password (\\password %[1]s in psql) and leave %[4]s_PASSWORD out of the settings of migrate (of nothing else); or set SENDONCE_HOT_ROLE and SENDONCE_READ_ROLE to nothing, so that everything logs in as the user of DATABASE_URL",
		r.name, refused.Message, needed, r.prefix)
}
