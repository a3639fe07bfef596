package store

import (
	"context"
	"errors"
	"fmt"
)

// ErrRoleSettings is what Ping returns where the hot role has settings that make
// commits less durable, hide the tables or refuse all writes.
var ErrRoleSettings = errors.New("the database role has settings that migrate did not make")

// roleSettingsSQL lists these settings of the session and of those that will begin.
// What the server or the database sets is the operator's. A role may change its own,
// and behind a pooler that does not reset them a session keeps what another set.
const roleSettingsSQL = `
select coalesce(string_agg(distinct name, ', '), '')
from (
    select name, setting from pg_settings where source in ('user', 'database user', 'session')
    union all
    select split_part(setting, '=', 1), split_part(setting, '=', 2) from pg_db_role_setting, unnest(setconfig) setting
    where setrole = (select oid from pg_roles where rolname = current_user)
        and setdatabase in (0, (select oid from pg_database where datname = current_database()))
) changed
where name in ('synchronous_commit', 'default_transaction_read_only') or name = 'search_path' and setting <> 'public, pg_temp'`

// Ping asks the database for an answer: the readiness of a process. It closes the
// connections where one has settings that it must not have (ErrRoleSettings), so
// that new ones work as soon as the role is as migrate makes it.
func (db *DB) Ping(ctx context.Context) error {
	if !db.hotHasRole {
		return db.hot.Ping(ctx)
	}
	var changed string
	if err := db.hot.QueryRow(ctx, roleSettingsSQL, unprepared).Scan(&changed); err != nil {
		return err
	}
	if changed == "" {
		return nil
	}
	db.hot.Reset()
	return fmt.Errorf("%w: %s; run migrate", ErrRoleSettings, changed)
}
