package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pair is a primary and a standby that has every commit before the primary
// answers it.
type Pair struct {
	t                testing.TB
	primary, standby *Postgres
	services         []*Proxy
}

// NewPair starts a pair for the length of the test, private whatever DATABASE_URL
// says. It skips the test where the server came without pg_basebackup.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	bin, err := findBinaries(ctx, 0)
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
	if _, err := exec.LookPath(filepath.Join(bin.dir, "pg_basebackup")); err != nil {
		t.Skipf("a standby is made with pg_basebackup, which is not in %s: install PostgreSQL", bin.dir)
	}
	pair := &Pair{t: t}
	pair.primary = pair.start(ctx, func(ctx context.Context, p *Postgres) error { return p.start(ctx, Options{}) })
	pair.standby = pair.start(ctx, func(ctx context.Context, p *Postgres) error { return p.follow(ctx, bin, pair.primary) })
	if err := pair.primary.waitForStandby(ctx); err != nil {
		t.Fatalf("sandbox: make commits wait for the standby: %v", err)
	}
	return pair
}

func (p *Pair) start(ctx context.Context, start func(context.Context, *Postgres) error) *Postgres {
	p.t.Helper()
	server, err := startPrivate(ctx, Options{}, start)
	if err != nil {
		p.t.Fatalf("sandbox: %v", err)
	}
	p.t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			p.t.Errorf("sandbox: %v", err)
		}
	})
	return server
}

// follow makes the server a standby of the primary and starts it.
func (p *Postgres) follow(ctx context.Context, bin binaries, primary *Postgres) error {
	backup, err := Start(Command{
		Path: filepath.Join(bin.dir, "pg_basebackup"), Env: serverEnv(), Dir: p.place.root, user: p.place.as,
		Args: []string{"-D", p.place.data(), "-d", primary.URL("postgres"), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"},
	})
	if err != nil {
		return err
	}
	select {
	case <-backup.Exited():
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("pg_basebackup: %w", ctx.Err()), backup.Kill())
	}
	if backup.ExitCode() != 0 {
		return fmt.Errorf("pg_basebackup failed:\n%s", backup.Output())
	}
	return p.run(ctx, bin, Options{})
}

// waitForStandby has commits wait for a standby, once there is one to wait for.
func (p *Postgres) waitForStandby(ctx context.Context) error {
	if err := p.admin(ctx, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"); err != nil {
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

// URL is the connection string for database as the owner. It names both servers:
// the one that takes writes is found at each login.
func (p *Pair) URL(database string) string {
	return "postgres://" + Owner + "@/" + database + "?target_session_attrs=read-write&host=" +
		url.QueryEscape(p.primary.place.socket+","+p.standby.place.socket)
}

// Service is one address of whichever server takes writes, as an operator's
// read-write service is: Promote has it lead to the new primary and closes all
// connections to the old one. Until then it refuses when that is gone.
func (p *Pair) Service(t testing.TB) *Proxy {
	t.Helper()
	service := NewProxy(t, p.primary.URL("postgres"))
	p.services = append(p.services, service)
	return service
}

// KillPrimary ends the primary with SIGKILL and waits until it is gone.
func (p *Pair) KillPrimary() {
	p.t.Helper()
	if err := p.primary.process.Kill(); err != nil {
		p.t.Fatalf("sandbox: %v", err)
	}
}

// StopPrimary shuts the primary down as an administrator does (fast): sessions
// are cut off, and the standby gets everything first.
func (p *Pair) StopPrimary() {
	p.t.Helper()
	if err := p.primary.process.Signal(syscall.SIGINT); err != nil {
		p.t.Fatalf("sandbox: %v", err)
	}
	if !p.primary.process.endsWithin(shutdownLimit) {
		p.t.Fatalf("sandbox: the primary does not end:\n%s", p.primary.process.Output())
	}
}

// Promote makes the standby the primary. It takes writes, and services lead to
// it, when this returns.
func (p *Pair) Promote() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), adminLimit)
	defer cancel()
	if err := p.standby.admin(ctx, "SELECT pg_promote()"); err != nil {
		p.t.Fatalf("sandbox: promote the standby: %v", err)
	}
	for _, service := range p.services {
		if err := service.Lead(p.standby.URL("postgres")); err != nil {
			p.t.Fatalf("sandbox: %v", err)
		}
	}
}
