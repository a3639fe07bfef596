package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncer is a pooler in transaction mode before a server.
type PgBouncer struct {
	place   *place
	process *Process
}

const bouncerSettings = `
[databases]
* = host=%s port=%d
[pgbouncer]
unix_socket_dir = %s
listen_port = 5432
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 4
max_client_conn = 1000
query_wait_timeout = 5
server_connect_timeout = 3
server_login_retry = 1
`

// NewPgBouncer starts one for the length of the test before the server that the
// tests of a package share, with so few connections that sessions must share
// them. It skips the test where there is none, and where DATABASE_URL names the server.
func NewPgBouncer(t testing.TB) *PgBouncer {
	t.Helper()
	server := SharedPostgres(t)
	if server.place == nil {
		t.Skip("DATABASE_URL names a server that pgbouncer has no way into")
	}
	return NewPgBouncerTo(t, server.URL("postgres"))
}

// NewPgBouncerTo is NewPgBouncer before the server of databaseURL, which must
// trust who comes to it.
func NewPgBouncerTo(t testing.TB, databaseURL string) *PgBouncer {
	t.Helper()
	path, err := findPgBouncer()
	if err != nil {
		t.Skip("there is no pgbouncer on this machine: install it (Debian: apt-get install pgbouncer)")
	}
	server, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
	as, err := unprivileged()
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
	place, err := openPlace("", "", as)
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
	b := &PgBouncer{place: place}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("sandbox: stop pgbouncer: %v", err)
		}
	})
	if err := b.start(t.Context(), path, server); err != nil {
		t.Fatalf("sandbox: start pgbouncer: %v", err)
	}
	return b
}

// findPgBouncer looks where Debian puts it, too, which is on root's PATH only.
func findPgBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/pgbouncer")
}

func (b *PgBouncer) start(ctx context.Context, path string, server *pgconn.Config) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	users, settings := filepath.Join(b.place.root, "users"), filepath.Join(b.place.root, "settings")
	for file, text := range map[string]string{
		users:    fmt.Sprintf("%q \"\"\n%q \"\"\n%q \"\"\n", Owner, HotRole, ReadRole),
		settings: fmt.Sprintf(bouncerSettings, server.Host, server.Port, b.place.socket, users),
	} {
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), b.place.own(file)); err != nil {
			return err
		}
	}
	b.process, err = Start(Command{
		Path: path, Args: []string{settings}, Env: serverEnv(), Dir: b.place.root, user: b.place.as, OrphanSweep: b.place.root,
	})
	if err != nil {
		return err
	}
	return b.accepts(ctx)
}

func (b *PgBouncer) accepts(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, b.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-b.process.Exited():
			return fmt.Errorf("it exited with %d:\n%s", b.process.ExitCode(), b.process.Output())
		case <-ctx.Done():
			return fmt.Errorf("it does not accept connections: %w\n%s", err, b.process.Output())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// URL is the connection string for database as the owner, through the pooler.
func (b *PgBouncer) URL(database string) string {
	return "postgres://" + Owner + "@/" + database + "?host=" + b.place.socket
}

func (b *PgBouncer) stop() error {
	var err error
	if b.process != nil {
		err = b.process.Kill()
	}
	return errors.Join(err, b.place.close())
}
