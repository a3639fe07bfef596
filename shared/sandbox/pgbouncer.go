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
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
server_reset_query_always = 1
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

// NewPgBouncerTo is NewPgBouncer before the server of databaseURL.
func NewPgBouncerTo(t testing.TB, databaseURL string) *PgBouncer {
	t.Helper()
	b, err := StartPgBouncer(t.Context(), databaseURL)
	if errors.Is(err, ErrNoPgBouncer) {
		t.Skip(err.Error())
	}
	if err != nil {
		t.Fatalf("sandbox: start pgbouncer: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Errorf("sandbox: stop pgbouncer: %v", err)
		}
	})
	return b
}

// ErrNoPgBouncer says that the machine has none.
var ErrNoPgBouncer = errors.New("there is no pgbouncer on this machine: install it (Debian: apt-get install pgbouncer)")

// StartPgBouncer starts one before the server of databaseURL, which knows Roles.
func StartPgBouncer(ctx context.Context, databaseURL string) (*PgBouncer, error) {
	path, err := findPgBouncer()
	if err != nil {
		return nil, ErrNoPgBouncer
	}
	server, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	place, err := openPlace("", "", as)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{place: place}
	if err := b.start(ctx, path, server); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	return b, nil
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
		users:    userList(),
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

// userList has an entry for each role: PgBouncer asks for the password and logs in
// to the server with it.
func userList() string {
	return fmt.Sprintf("%q %q\n%q %q\n%q %q\n%q %q\n", Roles.Hot, Roles.HotPassword, Roles.Read, Roles.ReadPassword,
		Roles.Admin, Roles.AdminPassword, Roles.Retention, Roles.RetentionPassword)
}

// accepts waits until it asks for a password.
func (b *PgBouncer) accepts(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, b.URL("postgres"))
		var refused *pgconn.PgError
		switch {
		case err == nil:
			return conn.Close(ctx)
		case errors.As(err, &refused):
			return nil
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

// URL is the connection string for database through the pooler, for any of Roles.
func (b *PgBouncer) URL(database string) string {
	return "postgres:///" + database + "?host=" + b.place.socket
}

// Stop ends it.
func (b *PgBouncer) Stop() error {
	var err error
	if b.process != nil {
		err = b.process.Kill()
	}
	return errors.Join(err, b.place.close())
}
