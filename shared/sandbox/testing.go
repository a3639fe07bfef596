package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/migrations"
)

// Roles are the roles of test databases, with their passwords.
var Roles = migrations.Roles{
	Hot: "sendonce_hot", HotPassword: "hot-password",
	Read: "sendonce_read", ReadPassword: "read-password",
	Admin: "sendonce_admin", AdminPassword: "admin-password",
	Retention: "sendonce_retention", RetentionPassword: "retention-password",
}

// Password returns the password of one of Roles.
func Password(role string) string {
	return map[string]string{
		Roles.Hot: Roles.HotPassword, Roles.Read: Roles.ReadPassword, Roles.Admin: Roles.AdminPassword, Roles.Retention: Roles.RetentionPassword,
	}[role]
}

// RolesEnv returns the settings with the passwords of Roles.
func RolesEnv() []string {
	return []string{
		"SENDONCE_HOT_PASSWORD=" + Roles.HotPassword, "SENDONCE_READ_PASSWORD=" + Roles.ReadPassword,
		"SENDONCE_ADMIN_PASSWORD=" + Roles.AdminPassword, "SENDONCE_RETENTION_PASSWORD=" + Roles.RetentionPassword,
	}
}

// adminTimeout is for creating and dropping databases. It is long because many packages may be
// tested at once.
const adminTimeout = time.Minute

// must fails the test and stops it if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
}

// stopAtEnd calls stop at the end of the test. The test fails if stop returns an error.
func stopAtEnd(t testing.TB, stop func() error) {
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("sandbox: %v", err)
		}
	})
}

// fixtures is what the tests of one package share. Main removes it.
type fixtures struct {
	mu       sync.Mutex
	postgres *Postgres
	template string            // name of the migrated template database; "" = not made yet
	bin      string            // directory of the binaries; "" = none yet
	built    map[string]string // the binary by import path
}

var shared fixtures

// Main runs the tests of a package and then removes what they shared:
//
//	func TestMain(m *testing.M) { sandbox.Main(m) }
//
// Before it removes them, it calls the functions end.
func Main(m *testing.M, end ...func()) {
	code := m.Run()
	for _, e := range end {
		e()
	}
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func (f *fixtures) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if f.postgres != nil {
		errs = append(errs, f.postgres.Stop())
	}
	if f.bin != "" {
		errs = append(errs, os.RemoveAll(f.bin))
	}
	return errors.Join(errs...)
}

// SharedPostgres returns the server that all tests of the package share. A test that
// stops or breaks its server must start its own.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	p, err := shared.sharedServer()
	must(t, err)
	return p
}

// NewDatabase creates a migrated database and returns its URL for the owner. The database is dropped
// at the end of the test.
func NewDatabase(t testing.TB) string {
	t.Helper()
	return newDatabase(t, func(ctx context.Context, p *Postgres) (string, error) {
		if shared.template == "" {
			name, err := makeTemplate(ctx, p)
			if err != nil {
				return "", fmt.Errorf("create the template database: %w", err)
			}
			shared.template = name
		}
		return shared.template, nil
	})
}

// NewEmptyDatabase is NewDatabase without the migrations.
func NewEmptyDatabase(t testing.TB) string {
	t.Helper()
	return newDatabase(t, func(context.Context, *Postgres) (string, error) { return "template0", nil })
}

// newDatabase copies a template. It makes one copy at a time, since Postgres does not copy a
// template that has connections.
func newDatabase(t testing.TB, template func(context.Context, *Postgres) (string, error)) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	p, err := shared.sharedServer()
	must(t, err)
	from, err := template(ctx, p)
	must(t, err)
	name := "test_" + strings.ToLower(rand.Text()[:12])
	must(t, p.clone(ctx, name, from))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		if err := p.admin(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("sandbox: drop the database: %v", err)
		}
	})
	return p.URL(name)
}

// sharedServer returns the server of RunShared or, without one, starts a server once. The caller
// holds f.mu.
func (f *fixtures) sharedServer() (*Postgres, error) {
	if f.postgres != nil {
		return f.postgres, nil
	}
	if url := sharedSetting(postgresVariable); url != "" && os.Getenv("DATABASE_URL") == "" {
		f.postgres = &Postgres{base: url, private: true}
		return f.postgres, nil
	}
	p, err := StartPostgres(context.Background(), Options{})
	if err != nil {
		return nil, err
	}
	f.postgres = p
	return p, nil
}

// clone creates a database as a copy of another one. A private server, which runs without fsync,
// copies fastest with the strategy FILE_COPY. Postgres before 15 always uses it and has no option
// for it.
func (p *Postgres) clone(ctx context.Context, name, from string) error {
	conn, err := pgx.Connect(ctx, p.base)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	strategy := ""
	if major, err := strconv.Atoi(majorOf(conn.PgConn().ParameterStatus("server_version"))); err == nil && major >= 15 && p.private {
		strategy = " STRATEGY FILE_COPY"
	}
	if _, err = conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+from+strategy); err == nil {
		// Privileges on the template itself are not copied.
		_, err = conn.Exec(ctx, "REVOKE TEMPORARY ON DATABASE "+name+" FROM PUBLIC")
	}
	return err
}

// connect checks that a server accepts a connection.
func connect(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// admin runs statements while connected to the server's own database, not to that of a test.
func (p *Postgres) admin(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.base)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// makeTemplate returns the name of the template database with the current migrations. It creates
// the template unless another test process has. An incomplete one, of a process that was killed, is
// not marked as a template and is created again.
func makeTemplate(ctx context.Context, p *Postgres) (string, error) {
	sum, err := migrations.Hash()
	if err != nil {
		return "", err
	}
	name := "sendonce_template_" + sum[:16]
	conn, err := pgx.Connect(ctx, p.base)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	id := fnv.New64a()
	id.Write([]byte(name))
	// Closing the connection releases the lock.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(id.Sum64())); err != nil {
		return "", err
	}
	var complete bool
	err = conn.QueryRow(ctx, "SELECT datistemplate FROM pg_database WHERE datname = $1", name).Scan(&complete)
	if complete {
		return name, nil
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", err
	}
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name + " TEMPLATE template0"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	if err := migrate(ctx, p.URL(name)); err != nil {
		return "", err
	}
	if p.private {
		if err := useCheapPasswordHashes(ctx, conn); err != nil {
			return "", err
		}
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+name+" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false")
	return name, err
}

// useCheapPasswordHashes gives the roles SCRAM secrets with one iteration. With the default of 4096
// each login takes 20 ms under the race detector, and tests log in thousands of times.
func useCheapPasswordHashes(ctx context.Context, conn *pgx.Conn) error {
	for _, role := range []string{Roles.Hot, Roles.Read, Roles.Admin, Roles.Retention} {
		secret, err := migrations.ScramSecret(Password(role), 1)
		if err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "ALTER ROLE "+role+" PASSWORD '"+secret+"'"); err != nil {
			return err
		}
	}
	return nil
}

func migrate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = migrations.Up(ctx, conn, Roles)
	return err
}

// Build returns the path of the binary of the package with the import path pkg. It compiles the
// package once per test process, unless RunShared has.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	if bin := sharedBinary(pkg); bin != "" {
		return bin
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	bin, err := shared.build(pkg)
	must(t, err)
	return bin
}

func (f *fixtures) build(pkg string) (string, error) {
	if bin, ok := f.built[pkg]; ok {
		return bin, nil
	}
	if f.bin == "" {
		dir, err := os.MkdirTemp("", "so-bin-")
		if err != nil {
			return "", err
		}
		f.bin, f.built = dir, map[string]string{}
	}
	bin := filepath.Join(f.bin, fmt.Sprintf("%s-%d", filepath.Base(pkg), len(f.built)))
	if err := Compile(context.Background(), bin, pkg); err != nil {
		return "", err
	}
	f.built[pkg] = bin
	return bin, nil
}

// StartProcess starts bin and kills it at the end of the test. Its environment is PATH, HOME, TMPDIR
// and env ("NAME=value"). At the end its output is checked with CheckLeaks.
func StartProcess(t testing.TB, bin string, env []string, args ...string) *Process {
	t.Helper()
	base := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	p, err := Start(Command{Path: bin, Args: args, Env: append(base, env...)})
	must(t, err)
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Errorf("sandbox: %v", err)
		}
		CheckLeaks(t, "the output of "+filepath.Base(bin), p.Output())
	})
	return p
}

// Slow skips a test that takes seconds of processor time, except in make test TAGS=slow. What it guards is guarded
// faster elsewhere, or belongs to no guarantee.
func Slow(t testing.TB) {
	t.Helper()
	if !slowTests {
		t.Skip("make test TAGS=slow runs it")
	}
}
