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

const (
	insufficientPrivilege = "42501"
	duplicateObject       = "42710"
	uniqueViolation       = "23505"
	internalError         = "XX000"
)

// role is a login role, its planner and time-out settings, and its grants. The
// settings belong to the role because a pooler refuses them at connect.
type role struct {
	name     string
	settings []string
	grants   []string // %s stands for the quoted role
}

// readable has Postgres write values in the form that pgx reads as text, whatever
// is set for the database.
var readable = []string{"bytea_output=hex", "DateStyle=ISO", "extra_float_digits=1"}

func rolesOf(o Options) []role {
	roles := []role{{
		name: o.HotRole,
		// A plan made while the tables were empty must not meet a burst with
		// sequential scans.
		settings: append([]string{
			"plan_cache_mode=force_custom_plan", "enable_seqscan=off", "enable_sort=off", "enable_bitmapscan=off", "jit=off",
			"lock_timeout=2s", "statement_timeout=5s", "idle_in_transaction_session_timeout=10s",
		}, readable...),
		grants: []string{
			"GRANT USAGE ON SCHEMA public TO %s",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %s",
			"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO %s",
			"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO %s",
			"REVOKE INSERT, UPDATE, DELETE ON schema_migrations FROM %s",
		},
	}, {
		name:     o.ReadRole,
		settings: append([]string{"default_transaction_read_only=on", "statement_timeout=15s", "idle_in_transaction_session_timeout=10s", "jit=off"}, readable...),
		grants: []string{
			"GRANT USAGE ON SCHEMA public TO %s",
			"GRANT SELECT ON ALL TABLES IN SCHEMA public TO %s",
			"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO %s",
		},
	}}
	return slices.DeleteFunc(roles, func(r role) bool { return r.name == "" })
}

func (r role) quoted() string { return pgx.Identifier{r.name}.Sanitize() }

// makeRoles makes and grants the roles of o. It changes a role only when it must:
// roles belong to the whole cluster, where other databases are migrated too.
func makeRoles(ctx context.Context, conn *pgx.Conn, o Options) error {
	for _, r := range rolesOf(o) {
		statements, err := r.missing(ctx, conn)
		if err != nil {
			return fmt.Errorf("role %s: %w", r.name, err)
		}
		if o.Password != "" {
			password, err := conn.PgConn().EscapeString(o.Password)
			if err != nil {
				return fmt.Errorf("role %s: %w", r.name, err)
			}
			statements = append(statements, fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", r.quoted(), password))
		}
		for _, sql := range statements {
			if err := alterRole(ctx, conn, sql); err != nil {
				return r.explain(err)
			}
		}
		for _, grant := range r.grants {
			if _, err := conn.Exec(ctx, fmt.Sprintf(grant, r.quoted())); err != nil {
				return fmt.Errorf("grant to role %s: %w", r.name, err)
			}
		}
	}
	return nil
}

// missing gives the statements that bring the role into being with its settings.
func (r role) missing(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	var canLogin bool
	var have, statements []string
	err := conn.QueryRow(ctx, "SELECT rolcanlogin, coalesce(rolconfig, '{}') FROM pg_roles WHERE rolname = $1", r.name).Scan(&canLogin, &have)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		statements = append(statements, "CREATE ROLE "+r.quoted()+" LOGIN")
	case err != nil:
		return nil, err
	case !canLogin:
		statements = append(statements, "ALTER ROLE "+r.quoted()+" LOGIN")
	}
	for _, setting := range r.settings {
		if !slices.Contains(have, setting) {
			name, value, _ := strings.Cut(setting, "=")
			statements = append(statements, fmt.Sprintf("ALTER ROLE %s SET %s = '%s'", r.quoted(), name, value))
		}
	}
	return statements, nil
}

// alterRole runs sql, again and again while another database's migration
// changes the same role.
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
		case refused.Code != internalError || time.Now().After(deadline):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// explain tells the operator what to do when the connected user may not change roles.
func (r role) explain(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != insufficientPrivilege {
		return fmt.Errorf("role %s: %w", r.name, err)
	}
	needed := "CREATE ROLE " + r.quoted() + " LOGIN;"
	for _, setting := range r.settings {
		name, value, _ := strings.Cut(setting, "=")
		needed += fmt.Sprintf(" ALTER ROLE %s SET %s = '%s';", r.quoted(), name, value)
	}
	return fmt.Errorf("this user may not change role %s (%s): let an administrator run `%s`, or leave the role's name and password empty to use the URL's own user",
		r.name, refused.Message, needed)
}
