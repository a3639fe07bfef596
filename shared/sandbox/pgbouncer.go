package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncer is a pooler in transaction mode in front of a server.
type PgBouncer struct {
	dir     *serverDir
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

// NewPgBouncer starts a pooler in front of the shared server until the end of the test. The pooler has at most four
// connections to the server for each role and database, so sessions share them. The test is skipped if pgbouncer is not
// installed or DATABASE_URL is set.
func NewPgBouncer(t testing.TB) *PgBouncer {
	t.Helper()
	server := SharedPostgres(t)
	if !server.private {
		t.Skip("DATABASE_URL is set: pgbouncer cannot log in to that server")
	}
	return NewPgBouncerTo(t, server.URL("postgres"))
}

// NewPgBouncerTo is StartPgBouncer until the end of the test. The test is skipped if pgbouncer is not installed.
func NewPgBouncerTo(t testing.TB, serverURL string) *PgBouncer {
	t.Helper()
	b, err := StartPgBouncer(t.Context(), serverURL)
	if errors.Is(err, ErrNoPgBouncer) {
		t.Skip(err.Error())
	}
	must(t, err)
	stopAtEnd(t, b.Stop)
	return b
}

// ErrNoPgBouncer means that pgbouncer is not installed.
var ErrNoPgBouncer = errors.New("there is no pgbouncer on this machine: install it (Debian: apt-get install pgbouncer)")

// StartPgBouncer starts a pooler in front of the server of serverURL. That server must have the roles of the variable
// Roles, with these passwords.
func StartPgBouncer(ctx context.Context, serverURL string) (*PgBouncer, error) {
	path, err := findPgBouncer()
	if err != nil {
		return nil, ErrNoPgBouncer
	}
	server, err := pgconn.ParseConfig(serverURL)
	if err != nil {
		return nil, err
	}
	runAs, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := openServerDir("", "", runAs)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{dir: dir}
	if err := b.start(ctx, path, server); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	return b, nil
}

// findPgBouncer searches the PATH, and the directory of Debian's package, which only root's PATH has.
func findPgBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/pgbouncer")
}

func (b *PgBouncer) start(ctx context.Context, path string, server *pgconn.Config) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	users, settings := filepath.Join(b.dir.root, "users"), filepath.Join(b.dir.root, "settings")
	for file, text := range map[string]string{
		users:    userList(),
		settings: fmt.Sprintf(bouncerSettings, server.Host, server.Port, b.dir.socket, users),
	} {
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), b.dir.chown(file)); err != nil {
			return err
		}
	}
	b.process, err = Start(Command{
		Path: path, Args: []string{settings}, Env: serverEnv(), Dir: b.dir.root, user: b.dir.runAs, RemoveIfOrphaned: b.dir.root,
	})
	if err != nil {
		return err
	}
	return b.process.retry(ctx, func() error {
		err := runSQL(ctx, b.URL("postgres"))
		if _, refused := errors.AsType[*pgconn.PgError](err); refused {
			return nil // the pooler accepts connections: it refused this login only because the URL has no password
		}
		return err
	})
}

// userList returns the roles with their passwords. With these, PgBouncer checks the logins of clients and logs in to the
// server.
func userList() (list string) {
	for _, role := range roleNames {
		list += fmt.Sprintf("%q %q\n", role, Password(role))
	}
	return list
}

// URL returns the connection string of a database through the pooler, without a user.
func (b *PgBouncer) URL(database string) string {
	return "postgres:///" + database + "?host=" + b.dir.socket
}

// Stop kills the pooler and removes its files.
func (b *PgBouncer) Stop() error {
	var err error
	if b.process != nil {
		err = b.process.Kill()
	}
	return errors.Join(err, b.dir.close())
}
