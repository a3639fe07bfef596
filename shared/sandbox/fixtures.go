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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/migrations"
)

// fixtures has the Postgres and the binaries that the tests of one package share. Main stops and
// removes those that this process has started and built.
type fixtures struct {
	mu       sync.Mutex
	postgres *Postgres
	admin    *pgxpool.Pool     // creates and drops databases; nil before the first database
	template string            // name of the migrated template database; "" = not made yet
	bin      string            // directory of the binaries; "" = none yet
	built    map[string]string // the binary by import path
}

var shared fixtures

// Main runs the tests of a package, calls the cleanups, stops the server and removes the binaries that the package
// started and built, and exits:
//
//	func TestMain(m *testing.M) { sandbox.Main(m) }
func Main(m *testing.M, cleanups ...func()) {
	code := m.Run()
	for _, cleanup := range cleanups {
		cleanup()
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
	if f.admin != nil {
		f.admin.Close()
	}
	if f.postgres != nil {
		errs = append(errs, f.postgres.Stop())
	}
	if f.bin != "" {
		errs = append(errs, os.RemoveAll(f.bin))
	}
	return errors.Join(errs...)
}

// SharedPostgres returns the server that all tests of the package share. A test that stops or breaks its server must start
// one with StartPostgres.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	p, err := shared.sharedServer()
	must(t, err)
	return p
}

// NewDatabase creates a migrated database, and returns its URL with the owner as the user. The database is dropped at
// the end of the test.
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

// newDatabase creates a database as a copy of the database whose name template returns.
func newDatabase(t testing.TB, template func(context.Context, *Postgres) (string, error)) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	p, err := shared.sharedServer()
	must(t, err)
	templateName, err := template(ctx, p)
	must(t, err)
	if shared.admin == nil {
		shared.admin, err = pgxpool.New(ctx, p.base)
		must(t, err)
	}
	admin, name := shared.admin, "test_"+strings.ToLower(rand.Text()[:12])
	must(t, p.clone(ctx, admin, name, templateName))
	stopAtEnd(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		_, err := admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		return err
	})
	return p.URL(name)
}

// sharedServer returns the server of DATABASE_URL, else that of RunShared, else a server that the first call starts.
// The caller holds f.mu.
func (f *fixtures) sharedServer() (p *Postgres, err error) {
	if f.postgres != nil {
		return f.postgres, nil
	}
	if url := sharedSetting(postgresVariable); url != "" && os.Getenv("DATABASE_URL") == "" {
		f.postgres = &Postgres{base: url, private: true}
		return f.postgres, nil
	}
	f.postgres, err = StartPostgres(context.Background(), Options{})
	return f.postgres, err
}

// clone creates a database as a copy of template. A private server runs without fsync, and so copies fastest with the
// strategy FILE_COPY. Postgres 14 always uses this strategy and has no option for it.
func (p *Postgres) clone(ctx context.Context, admin *pgxpool.Pool, name, template string) error {
	conn, err := admin.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	strategy := ""
	if major, err := strconv.Atoi(majorOf(conn.Conn().PgConn().ParameterStatus("server_version"))); err == nil && major >= 15 && p.private {
		strategy = " STRATEGY FILE_COPY"
	}
	if _, err = conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+strategy); err == nil {
		// Privileges on the template itself are not copied.
		_, err = conn.Exec(ctx, "REVOKE TEMPORARY ON DATABASE "+name+" FROM PUBLIC")
	}
	return err
}

// makeTemplate returns the name of the template database with the current migrations. It creates the database unless
// another process has completed it. A killed process may leave the database incomplete, and not marked as a template:
// makeTemplate then creates it anew.
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
	// When the connection is closed, Postgres releases the lock.
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

// useCheapPasswordHashes gives the roles SCRAM secrets with one iteration. With the default of 4096 iterations each login
// takes 20 ms under the race detector, and tests log in thousands of times.
func useCheapPasswordHashes(ctx context.Context, conn *pgx.Conn) error {
	for _, role := range roleNames {
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

// Build returns the path of the binary of the package with the import path pkg. It compiles the package once per test
// process, unless RunShared has compiled the package.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	if bin := sharedBinary(pkg); bin != "" {
		return bin
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.built[pkg] == "" {
		if shared.bin == "" {
			dir, err := os.MkdirTemp("", "so-bin-")
			must(t, err)
			shared.bin, shared.built = dir, map[string]string{}
		}
		bin := filepath.Join(shared.bin, fmt.Sprintf("%s-%d", filepath.Base(pkg), len(shared.built)))
		must(t, Compile(context.Background(), bin, pkg))
		shared.built[pkg] = bin
	}
	return shared.built[pkg]
}
