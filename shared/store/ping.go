package store

import (
	"context"
	"errors"
	"fmt"
)

// ErrRoleSettings means that the hot role, or one of its sessions, has settings that make commits
// less durable, hide the tables or refuse all writes.
var ErrRoleSettings = errors.New("the database role has settings that migrate did not make")

// ErrReadOnly means that the database refuses all writes: default_transaction_read_only is set for the server or the
// database, or the server is a standby.
var ErrReadOnly = errors.New("the database accepts no writes")

// roleSettingsSQL returns which of three settings are not as migrate made them, in this session or for future sessions of
// the role; and whether the database refuses writes. A role may change its own settings. A pooler may pass a session to
// another client without a reset: the session then has the settings of the previous client. Settings of the server or
// the database are the operator's choice.
const roleSettingsSQL = `
select coalesce(string_agg(distinct name, ', '), ''), current_setting('transaction_read_only')::bool
from (
    select name, setting from pg_settings where source in ('user', 'database user', 'session')
    union all
    select split_part(setting, '=', 1), split_part(setting, '=', 2) from pg_db_role_setting, unnest(setconfig) setting
    where setrole = (select oid from pg_roles where rolname = current_user)
        and setdatabase in (0, (select oid from pg_database where datname = current_database()))
) changed
where name in ('synchronous_commit', 'default_transaction_read_only') or name = 'search_path' and setting <> 'public, pg_temp'`

// Ping checks that the database is available. If Roles.Hot is set, Ping also checks the settings of this role, and that
// the database accepts writes. If Ping returns ErrRoleSettings or ErrReadOnly, it has closed the connections of the pool
// Hot. New connections work as soon as migrate has restored the role, or the database accepts writes.
func (db *DB) Ping(ctx context.Context) error {
	if !db.hotHasRole {
		return db.Hot.Ping(ctx)
	}
	var changed string
	var readOnly bool
	err := db.Hot.QueryRow(ctx, roleSettingsSQL, Unprepared).Scan(&changed, &readOnly)
	switch {
	case err != nil:
		return err
	case changed != "":
		err = fmt.Errorf("%w: %s; run migrate", ErrRoleSettings, changed)
	case readOnly:
		err = ErrReadOnly
	default:
		return nil
	}
	db.Hot.Reset()
	return err
}
