package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/task"
)

// loginTimeout is how long a login to one host may take.
const loginTimeout = 3 * time.Second

func openPool(cfg Config, role, application string, change ...func(*pgxpool.Config)) (*pool, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", withoutPassword(err))
	}
	if role != "" {
		pc.ConnConfig.User = role
	}
	if cfg.Pooler {
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	pc.AfterConnect = registerTypes
	pc.ConnConfig.RuntimeParams["application_name"] = application
	pc.ConnConfig.ConnectTimeout = loginTimeout
	pc.MinConns = 0
	pc.MaxConns = int32(cfg.MaxConns)
	if cfg.MaxConns == 0 {
		pc.MaxConns = 8
	}
	pc.MaxConnIdleTime = 30 * time.Second
	pc.PingTimeout = time.Second // of an idle connection, whose host may be gone
	for _, c := range change {
		c(pc)
	}
	p, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, err
	}
	return &pool{Pool: p}, nil
}

// takePrimary has target_session_attrs=read-write mean the primary: the
// transactions of the read role are read-only by themselves, and by their look no
// server takes writes.
func takePrimary(pc *pgxpool.Config) {
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

// registerTypes tells pgx what our types are where it does not ask the server
// for the types of parameters: behind a pooler.
func registerTypes(_ context.Context, conn *pgx.Conn) error {
	m := conn.TypeMap()
	for _, one := range []any{task.ID{}, task.Hash{}, &task.Hash{}} {
		m.RegisterDefaultPgType(one, "uuid")
	}
	for _, many := range []any{[]task.ID(nil), []task.Hash(nil), []*task.Hash(nil), []*task.ID(nil)} {
		m.RegisterDefaultPgType(many, "_uuid")
	}
	return nil
}

// withoutPassword keeps a URL with a password out of the error text.
func withoutPassword(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return errors.New("is not a postgres:// URL: " + parse.Err.Error())
	}
	return err
}

// pool is a pgxpool.Pool that may log in before anybody asks it for something. Who
// does so meanwhile waits for that connection and does not begin another: for a
// process that starts because it is called, one login is most of the wait.
type pool struct {
	*pgxpool.Pool
	first  <-chan struct{} // closed when the early connection is there or has failed; nil = there is none
	giveUp context.CancelFunc
}

// connect begins to log in. It must be called before anything else.
func (p *pool) connect() {
	ctx, giveUp := context.WithCancel(context.Background())
	p.first, p.giveUp = ctx.Done(), giveUp
	go func() {
		defer giveUp()
		if conn, err := p.Pool.Acquire(ctx); err == nil {
			conn.Release()
		}
	}()
}

// Close ends the pool after the statements under way.
func (p *pool) Close() {
	if p.giveUp != nil {
		p.giveUp()
	}
	p.Pool.Close()
}

// earlyPatience is how long anybody waits for the early connection: one that takes
// longer hangs, and others perhaps would not.
const earlyPatience = 500 * time.Millisecond

// connected waits until the early connection may be had; when ctx ends first, what
// comes next says so.
func (p *pool) connected(ctx context.Context) *pgxpool.Pool {
	if p.first == nil || isClosed(p.first) {
		return p.Pool
	}
	patience := time.NewTimer(earlyPatience)
	defer patience.Stop()
	select {
	case <-p.first:
	case <-patience.C:
	case <-ctx.Done():
	}
	return p.Pool
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (p *pool) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return p.connected(ctx).Acquire(ctx)
}

func (p *pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.connected(ctx).Begin(ctx) }

func (p *pool) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	return p.connected(ctx).BeginTx(ctx, o)
}

func (p *pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.connected(ctx).Exec(ctx, sql, args...)
}

func (p *pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.connected(ctx).Query(ctx, sql, args...)
}

func (p *pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.connected(ctx).QueryRow(ctx, sql, args...)
}

func (p *pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return p.connected(ctx).SendBatch(ctx, b)
}

func (p *pool) Ping(ctx context.Context) error { return p.connected(ctx).Ping(ctx) }
