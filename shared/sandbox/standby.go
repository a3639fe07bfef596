package sandbox

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pair is a primary and a synchronous standby.
type Pair struct {
	t                testing.TB
	primary, standby *Postgres
	services         []*Proxy // started by the method Service
}

// NewPair starts a private pair until the end of the test, even if DATABASE_URL is set.
// It skips the test if pg_basebackup is not installed.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	bin, err := findBinaries(ctx, 0)
	must(t, err)
	if _, err := exec.LookPath(filepath.Join(bin.dir, "pg_basebackup")); err != nil {
		t.Skipf("%s has no pg_basebackup, which makes a standby: install a PostgreSQL that has it", bin.dir)
	}
	pair := &Pair{t: t}
	pair.primary = pair.start(ctx, func(ctx context.Context, p *Postgres) error { return p.start(ctx, Options{}) })
	pair.standby = pair.start(ctx, func(ctx context.Context, p *Postgres) error { return p.startStandby(ctx, bin, pair.primary) })
	must(t, pair.primary.makeSynchronous(ctx))
	return pair
}

func (p *Pair) start(ctx context.Context, start func(context.Context, *Postgres) error) *Postgres {
	p.t.Helper()
	server, err := startPrivate(ctx, Options{}, start)
	must(p.t, err)
	stopAtEnd(p.t, server.Stop)
	return server
}

// startStandby copies the data of the primary to p, and starts p as a standby.
func (p *Postgres) startStandby(ctx context.Context, bin binaries, primary *Postgres) error {
	backup, err := runToEnd(ctx, Command{
		Path: filepath.Join(bin.dir, "pg_basebackup"), Env: serverEnv(), Dir: p.dir.root, user: p.dir.runAs,
		Args: []string{"-D", p.dir.data(), "-d", primary.URL("postgres"), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"},
	})
	if err != nil {
		return err
	}
	if backup.ExitCode() != 0 {
		return fmt.Errorf("pg_basebackup failed:\n%s", backup.Output())
	}
	return p.run(ctx, bin, Options{})
}

// makeSynchronous makes commits wait for the standby, and waits until the standby is connected.
func (p *Postgres) makeSynchronous(ctx context.Context) error {
	if err := runSQL(ctx, p.base, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, p.base)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for follows := false; !follows; {
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").Scan(&follows); err != nil {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// URL returns the connection string of a database, with the owner as the user. It names both servers; the client
// connects to the one that accepts writes.
func (p *Pair) URL(database string) string {
	return "postgres://" + Owner + "@/" + database + "?target_session_attrs=read-write&host=" +
		url.QueryEscape(p.primary.dir.socket+","+p.standby.dir.socket)
}

// Service starts a proxy to the primary, like the read-write Service that a Kubernetes operator for Postgres creates.
// Promote closes the connections of the proxy, and redirects the proxy to the new primary.
func (p *Pair) Service(t testing.TB) *Proxy {
	t.Helper()
	service := NewProxy(t, p.primary.URL("postgres"))
	p.services = append(p.services, service)
	return service
}

// KillPrimary ends the primary with SIGKILL and waits until it is gone.
func (p *Pair) KillPrimary() {
	p.t.Helper()
	must(p.t, p.primary.process.Kill())
}

// StopPrimary shuts the primary down in mode fast: the primary closes its sessions, and sends all WAL to the standby
// before it ends.
func (p *Pair) StopPrimary() {
	p.t.Helper()
	must(p.t, p.primary.process.Signal(syscall.SIGINT))
	if !p.primary.process.endsWithin(shutdownTimeout) {
		p.t.Fatalf("sandbox: the primary does not end:\n%s", p.primary.process.Output())
	}
}

// Promote makes the standby the primary and redirects the proxies of Service. When it returns, the
// new primary accepts writes.
func (p *Pair) Promote() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), adminTimeout)
	defer cancel()
	must(p.t, runSQL(ctx, p.standby.base, "SELECT pg_promote()"))
	for _, service := range p.services {
		must(p.t, service.SetServer(p.standby.URL("postgres")))
	}
}
