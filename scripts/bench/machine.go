// Package bench is shared by the benchmarks in its subfolders. It has a private durable Postgres, processes of the real
// binary, calls over the loopback, baselines, and the table of results. The speed of a machine changes from minute to
// minute. So the baseline of a measurement is measured just before it: the ratio of the two varies less.
package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// Main runs a benchmark and prints its report. name is the target in the Makefile, for the error. If run returns an error,
// the process exits with code 1.
func Main(name string, run func(ctx context.Context, progress io.Writer) (report string, err error)) {
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	report, err := run(ctx, os.Stderr)
	fmt.Print(report)
	if err != nil {
		fmt.Fprintf(os.Stderr, "make %s: %v\n", name, err)
		os.Exit(1)
	}
}

// ConnectionsFlag defines the flag -connections, a list such as 1,16,64. Its default is the value of connections, which the
// flag overwrites with the sorted list.
func ConnectionsFlag(connections *[]int) {
	usage := "a `list` of numbers of connections: each is measured (default " + strings.Trim(strings.ReplaceAll(fmt.Sprint(*connections), " ", ","), "[]") + ")"
	flag.Func("connections", usage, func(list string) error {
		*connections = nil
		for part := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 1 || n > 1000 {
				return errors.New("must be numbers from 1 to 1000, separated by commas")
			}
			*connections = append(*connections, n)
		}
		slices.Sort(*connections)
		return nil
	})
}

// Database is the name of the migrated database.
const Database = "bench"

const baselineDatabase = "baseline" // a copy of Database

// Machine has the binary and the private Postgres of a benchmark.
type Machine struct {
	Binary   string // of Sendonce
	Postgres *sandbox.Postgres
	Conn     *pgx.Conn // of the superuser, to the database postgres

	dir                               string // removed at the end
	pgbench                           string // path; "" = not installed
	version, fsync, synchronousCommit string // the version of Postgres, and two of its settings
	maxConnections                    int
	inMemory                          bool // the data is on a tmpfs, where fsync costs nothing
}

// Prepare builds the binary, starts Postgres, calls measure and stops Postgres.
func Prepare(ctx context.Context, progress io.Writer, measure func(*Machine) error) (err error) {
	if os.Getenv("DATABASE_URL") != "" {
		return errors.New("DATABASE_URL is set, but a private Postgres is measured: unset it")
	}
	fmt.Fprintln(progress, "building the functions")
	dir, err := os.MkdirTemp("", "so-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := &Machine{Binary: filepath.Join(dir, "sendonce"), dir: dir}
	if err := sandbox.Compile(ctx, m.Binary, "github.com/sendonce/sendonce/functions/sendonce"); err != nil {
		return err
	}
	fmt.Fprintln(progress, "starting Postgres")
	if m.Postgres, err = sandbox.StartPostgres(ctx, sandbox.Options{Durable: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Postgres.Stop()) }()
	if m.Conn, err = pgx.Connect(ctx, m.Postgres.URL("postgres")); err != nil {
		return err
	}
	defer m.Conn.Close(context.WithoutCancel(ctx))
	if err := m.readSettings(ctx); err != nil {
		return err
	}
	if m.pgbench, err = m.findPgbench(ctx); err != nil {
		return err
	}
	if err := m.migrate(ctx); err != nil {
		return err
	}
	return measure(m)
}

func (m *Machine) migrate(ctx context.Context) error {
	if _, err := m.Conn.Exec(ctx, "create database "+Database); err != nil {
		return err
	}
	migrate := exec.CommandContext(ctx, m.Binary, "migrate")
	migrate.Env = environment(m.URL())
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, out)
	}
	for _, sql := range []string{"create database " + baselineDatabase + " template " + Database, "checkpoint"} {
		if _, err := m.Conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// findPgbench returns the path of pgbench beside the Postgres binaries or in PATH, or "".
func (m *Machine) findPgbench(ctx context.Context) (string, error) {
	var dir string
	if err := m.Conn.QueryRow(ctx, "select setting from pg_config where name = 'BINDIR'").Scan(&dir); err != nil {
		return "", fmt.Errorf("find pgbench: %w", err)
	}
	for _, name := range []string{filepath.Join(dir, "pgbench"), "pgbench"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", nil
}

// URL returns the URL of the migrated database.
func (m *Machine) URL() string { return m.Postgres.URL(Database) }

// environment returns the settings of a process of Sendonce.
func environment(databaseURL string) []string {
	return append(sandbox.RolesEnv(),
		"PATH="+os.Getenv("PATH"), "DATABASE_URL="+databaseURL, "APP_HOST=127.0.0.1", "PORT=0",
		"BASIC_AUTH_USERNAME="+username, "BASIC_AUTH_PASSWORD="+password, "SENDONCE_ENCRYPTION_KEYS="+sandbox.EncryptionKey,
		"SENDONCE_CALLER_SHARE=1") // one caller makes all calls
}

const settingsSQL = `
select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('max_connections')::int, current_setting('data_directory')`

func (m *Machine) readSettings(ctx context.Context) error {
	var dataDir string
	if err := m.Conn.QueryRow(ctx, settingsSQL).Scan(&m.version, &m.fsync, &m.synchronousCommit, &m.maxConnections, &dataDir); err != nil {
		return fmt.Errorf("read the settings of Postgres: %w", err)
	}
	const tmpfs = 0x01021994
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dataDir, &fs); err != nil {
		return fmt.Errorf("the file system of %s: %w", dataDir, err)
	}
	m.inMemory = int64(fs.Type) == tmpfs
	return nil
}

// String describes the machine and Postgres, for the report.
func (m *Machine) String() string {
	inMemory, noPgbench := "", ""
	if m.inMemory {
		inMemory = " (the data is in memory, where fsync costs nothing)"
	}
	if m.pgbench == "" {
		noPgbench = " pgbench was not found: its ratios are missing."
	}
	return fmt.Sprintf("%d cores (%s/%s), PostgreSQL %s, fsync %s%s, synchronous_commit %s, max_connections %d, %s.%s",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, m.version, m.fsync, inMemory, m.synchronousCommit, m.maxConnections, runtime.Version(), noPgbench)
}
