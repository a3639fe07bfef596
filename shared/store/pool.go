package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// Unprepared runs a statement in one round trip and plans it for its parameters. It is for two kinds of statements:
// those that a connection rarely runs, where preparing costs more than it saves; and lists, whose best plan
// depends on the filters.
//
// An unprepared statement should cast its parameters, compare values of the same type, and get null as a parameter
// instead of calling nullif. Otherwise the server must choose among all operators of the same name, such as =. On a new
// connection, whose catalog cache is empty, each choice takes 0.4 ms.
const Unprepared = pgx.QueryExecModeExec

// pools holds one connection pool for each role.
type pools struct {
	Hot, Read        *pgxpool.Pool
	admin, Retention *pgxpool.Pool // the same as Hot if Roles.Hot is empty

	cancelledSyncs *atomic.Uint64 // see DB.CancelledSyncs
}

func openPools(cfg Config) (p pools, err error) {
	hot, err := poolConfig(cfg)
	if err != nil {
		return p, err
	}
	p.cancelledSyncs = new(atomic.Uint64)
	hot.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" { // the text depends on lc_messages
			p.cancelledSyncs.Add(1)
		}
	}
	open := func(pc *pgxpool.Config, role, password, application string) *pgxpool.Pool {
		if err != nil {
			return nil
		}
		var pool *pgxpool.Pool
		pool, err = openPool(pc, role, password, application)
		return pool
	}
	read, rare := hot.Copy(), hot.Copy()
	disablePreparedStatements(read)
	acceptReadOnlyPrimary(read)
	rare.MaxConns = min(rare.MaxConns, 2)
	r := cfg.Roles
	p.Hot = open(hot, r.Hot, r.HotPassword, "sendonce")
	p.Read = open(read, r.Read, r.ReadPassword, "sendonce-read")
	p.admin, p.Retention = p.Hot, p.Hot
	if r.Hot != "" {
		p.admin = open(rare.Copy(), r.Admin, r.AdminPassword, "sendonce-admin")
		p.Retention = open(rare, r.Retention, r.RetentionPassword, "sendonce-retention")
	}
	if err != nil {
		p.close()
	}
	return p, err
}

func (p pools) byName() map[string]*pgxpool.Pool {
	all := map[string]*pgxpool.Pool{"hot": p.Hot, "read": p.Read}
	if p.admin != p.Hot {
		all["admin"], all["retention"] = p.admin, p.Retention
	}
	return all
}

func (p pools) close() {
	for _, pool := range p.byName() {
		if pool != nil {
			pool.Close()
		}
	}
}

// poolConfig returns the settings that all pools share.
func poolConfig(cfg Config) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", withoutPassword(err))
	}
	if cfg.Pooler {
		disablePreparedStatements(pc)
	}
	pc.AfterConnect = registerTypes
	pc.ConnConfig.ConnectTimeout = 3 * time.Second // to one host
	pc.MinConns, pc.MaxConns = 0, int32(cmp.Or(cfg.MaxConns, 8))
	pc.MaxConnIdleTime = 30 * time.Second
	pc.PingTimeout = time.Second // before an idle connection is used again: its host may be gone
	return pc, nil
}

func openPool(pc *pgxpool.Config, role, password, application string) (*pgxpool.Pool, error) {
	if role != "" {
		pc.ConnConfig.User, pc.ConnConfig.Password = role, cmp.Or(password, pc.ConnConfig.Password)
	}
	pc.ConnConfig.RuntimeParams["application_name"] = application
	pc.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // pgx needs it, whatever the database has
	pc.ConnConfig.Tracer = newConnectionLimiter(int(pc.MaxConns))
	return pgxpool.NewWithConfig(context.Background(), pc)
}

func disablePreparedStatements(pc *pgxpool.Config) {
	pc.ConnConfig.DefaultQueryExecMode, pc.ConnConfig.StatementCacheCapacity = Unprepared, 0
}

// acceptReadOnlyPrimary lets the read role connect to the primary with target_session_attrs=read-write. The role has
// default_transaction_read_only, so that every server looks read-only.
func acceptReadOnlyPrimary(pc *pgxpool.Config) {
	validate := pc.ConnConfig.ValidateConnect
	if validate == nil {
		return
	}
	pc.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		err := validate(ctx, conn)
		if errors.Is(err, pgconn.ErrReadOnlyConnection) {
			return pgconn.ValidateConnectTargetSessionAttrsPrimary(ctx, conn)
		}
		return err
	}
}

// registerTypes maps our Go types to Postgres types. Unprepared statements need this, because for them pgx does not query
// the server for the types of parameters.
func registerTypes(_ context.Context, conn *pgx.Conn) error {
	m := conn.TypeMap()
	for _, id := range []any{task.ID{}, task.Hash{}, &task.Hash{}} {
		m.RegisterDefaultPgType(id, "uuid")
	}
	for _, ids := range []any{[]task.ID(nil), []task.Hash(nil), []*task.Hash(nil), []*task.ID(nil)} {
		m.RegisterDefaultPgType(ids, "_uuid")
	}
	registerArrays(m)
	return nil
}

// withoutPassword describes the error without any part of the URL: in a malformed URL any
// part may be the password.
func withoutPassword(err error) error {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return errors.New("is not valid; give postgres://host:5432/name")
	}
	reason := parse.Error() // cannot parse `URL`: reason (cause)
	if cause := parse.Unwrap(); cause != nil {
		reason = strings.TrimSuffix(reason, " ("+cause.Error()+")")
	}
	reason = reason[strings.LastIndex(reason, "`: ")+len("`: "):]
	return fmt.Errorf("is not valid: %s; give postgres://host:5432/name", reason)
}
