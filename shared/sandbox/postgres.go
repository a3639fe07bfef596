package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Owner is the superuser of a private server.
const Owner = "postgres"

const (
	startTimeout    = 2 * time.Minute  // long, because crash recovery of a large database takes long
	lingerTimeout   = 15 * time.Second // how long an orphan, or the backends of a killed server, may take to end
	shutdownTimeout = 20 * time.Second
	adminTimeout    = time.Minute // to create or drop a database, or to promote a standby; long, because many packages may be tested at once
)

// Options configures a private server.
type Options struct {
	Dir             string    // "" = a temporary one, removed by Stop; unless Durable, it is in memory if possible
	Durable         bool      // commits survive a crash of the machine; false (for tests) = they survive only a kill -9 of Postgres
	ManyConnections bool      // 1000 connections instead of 300: for several test packages at once
	Log             io.Writer // for the server's log; nil = none
}

// Postgres is a running server: a private one, that of RunShared, or the one that DATABASE_URL names. The zero value
// has no server.
type Postgres struct {
	base    string     // the connection string of the database postgres, or DATABASE_URL
	private bool       // the sandbox has started the server, so tests may change it; false = DATABASE_URL names it
	dir     *serverDir // of a server that StartPostgres or NewPair started; else nil
	process *Process   // the postmaster of such a server; else nil
}

// StartPostgres returns the server that DATABASE_URL names. Without DATABASE_URL it starts
// a private server and waits until the server accepts connections. It downloads Postgres if this
// machine has none. A directory has one server at a time: while the process that started a server there runs and has
// not stopped the server, StartPostgres returns an error; if that process was killed, StartPostgres first ends the
// server.
func StartPostgres(ctx context.Context, o Options) (*Postgres, error) {
	if base := os.Getenv("DATABASE_URL"); base != "" {
		return &Postgres{base: base}, nil
	}
	return startPrivate(ctx, o, func(ctx context.Context, p *Postgres) error { return p.start(ctx, o) })
}

// startPrivate makes the directory of a private server, and calls start, which starts the server or only fills the
// directory.
func startPrivate(ctx context.Context, o Options, start func(context.Context, *Postgres) error) (*Postgres, error) {
	runAs, err := unprivileged()
	if err != nil {
		return nil, err
	}
	parent := ""
	if !o.Durable {
		parent = memoryDir()
	}
	dir, err := openServerDir(o.Dir, parent, runAs)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p := &Postgres{dir: dir, private: true, base: "postgres://" + Owner + "@/postgres?host=" + dir.socket}
	if err := start(ctx, p); err != nil {
		dir.close()
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	return p, nil
}

func (p *Postgres) start(ctx context.Context, o Options) error {
	major, err := p.dataMajor()
	if err != nil {
		return err
	}
	bin, err := findBinaries(ctx, major)
	if err != nil {
		return err
	}
	if major == 0 {
		if err := p.initialise(ctx, bin, o.Durable); err != nil {
			return err
		}
	}
	if err := errors.Join(p.writeAuthRules(), p.removeStale(ctx)); err != nil {
		return err
	}
	return p.run(ctx, bin, o)
}

// writeAuthRules requires a password of all roles but the owner. Only root and the user that runs
// the server can reach its socket, and both can read and write the data files without a password.
func (p *Postgres) writeAuthRules() error {
	const rules = "local all,replication " + Owner + " trust\nlocal all all scram-sha-256\n"
	file := filepath.Join(p.dir.data(), "pg_hba.conf")
	return errors.Join(os.WriteFile(file, []byte(rules), 0o600), p.dir.chown(file))
}

// dataMajor returns the major version that wrote the data, or 0 if there is no data.
func (p *Postgres) dataMajor() (int, error) {
	info, err := os.Stat(p.dir.data())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != p.dir.uid() {
		return 0, fmt.Errorf("%s belongs to user %d and Postgres would run as user %d: change its owner or use another directory",
			p.dir.data(), stat.Uid, p.dir.uid())
	}
	text, err := os.ReadFile(filepath.Join(p.dir.data(), "PG_VERSION"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// initialise creates the data directory. The directory gets its final name when it is complete.
func (p *Postgres) initialise(ctx context.Context, bin binaries, durable bool) error {
	if err := p.dir.chown(p.dir.root); err != nil {
		return err
	}
	unfinished := p.dir.data() + ".new"
	if data := sharedDataDir(bin); data != "" {
		if out, err := exec.CommandContext(ctx, "cp", "-Rp", data, unfinished).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", data, err, out)
		}
		return os.Rename(unfinished, p.dir.data())
	}
	args := []string{"-D", unfinished, "-U", Owner, "-A", "trust", "-E", "UTF8"}
	if !durable {
		args = append(args, "--no-sync")
	}
	// The locale C sorts in the same order on every system. C.UTF-8 classifies letters
	// beyond ASCII, but not every system has it.
	var initdb *Process
	for _, locale := range [][]string{{"--locale=C", "--lc-ctype=C.UTF-8"}, {"--no-locale"}} {
		if err := os.RemoveAll(unfinished); err != nil {
			return err
		}
		var err error
		initdb, err = runToEnd(ctx, Command{
			Path: filepath.Join(bin.dir, "initdb"), Args: append(slices.Clone(args), locale...),
			Env: serverEnv(), Dir: p.dir.root, user: p.dir.runAs,
		})
		if err != nil {
			return err
		}
		if initdb.ExitCode() == 0 {
			return os.Rename(unfinished, p.dir.data())
		}
		if !strings.Contains(initdb.Output(), "locale") {
			break
		}
	}
	return fmt.Errorf("initdb failed:\n%s", initdb.Output())
}

func serverEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}

// removeStale ends an orphan, and removes the pid file and the socket of the last server. This process has locked the
// directory, so a postmaster that runs there is an orphan. Without an orphan, the pid in the file may by now belong to
// another program, which endOrphan does not touch.
func (p *Postgres) removeStale(ctx context.Context) error {
	pidFile := filepath.Join(p.dir.data(), "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
		if err := endOrphan(ctx, pid, p.dir.data()); err != nil {
			return err
		}
	}
	for _, stale := range []string{pidFile, filepath.Join(p.dir.socket, ".s.PGSQL.5432"), filepath.Join(p.dir.socket, ".s.PGSQL.5432.lock")} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// endOrphan shuts down process pid if the process is the postmaster of the directory data.
func endOrphan(ctx context.Context, pid int, data string) error {
	deadline := time.Now().Add(lingerTimeout)
	for sig := syscall.SIGINT; strings.Contains(commandLine(ctx, pid), "/postgres -D "+data+" "); {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end the Postgres %d that was left running in %s: %w", pid, data, err)
		}
		if time.Now().After(deadline) {
			sig = syscall.SIGKILL
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the Postgres %d that was left running in %s does not end: %w", pid, data, err)
		}
	}
	return nil
}

// commandLine returns the program and arguments of a process, each followed by a space,
// or "" if the process has ended.
func commandLine(ctx context.Context, pid int) string {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		return strings.ReplaceAll(string(text), "\x00", " ")
	}
	out, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out)) + " "
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// run starts the server and waits until it accepts connections. While the backends of a killed postmaster still use its
// shared memory, run repeats the start.
func (p *Postgres) run(ctx context.Context, bin binaries, o Options) error {
	for deadline := time.Now().Add(lingerTimeout); ; {
		process, err := Start(p.command(bin, o))
		if err != nil {
			return err
		}
		if err = process.retry(ctx, func() error { return runSQL(ctx, p.base) }); err == nil {
			p.process = process
			return nil
		}
		if killErr := process.Kill(); killErr != nil {
			return errors.Join(err, killErr)
		}
		if !strings.Contains(process.Output(), "still in use") || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func (p *Postgres) command(bin binaries, o Options) Command {
	connections := "300"
	if o.ManyConnections {
		connections = "1000"
	}
	settings := []string{
		"listen_addresses=", "port=5432", "unix_socket_directories=" + p.dir.socket, "max_connections=" + connections,
		"max_wal_size=4GB", "checkpoint_timeout=15min",
		"timezone=UTC", "log_timezone=UTC", "lc_messages=C", "log_destination=stderr", "logging_collector=off",
		"log_error_verbosity=terse", // details of an error may have whole rows, with phone numbers
	}
	if o.Durable {
		settings = append(settings, "shared_buffers=256MB", "wal_compression=on", "autovacuum_naptime=10s")
	} else {
		// synchronous_commit stays on: otherwise a kill -9 could lose an acknowledged commit. With fsync off,
		// synchronous_commit costs little.
		settings = append(settings, "shared_buffers=128MB", "fsync=off", "full_page_writes=off")
		if _, err := os.Stat(filepath.Join(bin.dir, "../lib/pg_stat_statements.so")); err == nil {
			settings = append(settings, "shared_preload_libraries=pg_stat_statements")
		}
	}
	args := []string{"-D", p.dir.data()}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	c := Command{
		Path: filepath.Join(bin.dir, "postgres"), Args: args, Env: serverEnv(), Dir: p.dir.root,
		Output: o.Log, OrphanSignal: syscall.SIGINT, user: p.dir.runAs,
	}
	if p.dir.temporary {
		c.RemoveIfOrphaned = p.dir.root
	}
	return c
}

// runSQL connects to a database and runs the statements. Without statements it checks that the server accepts a connection.
func runSQL(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
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

// URL returns the connection string of a database, with the owner as the user (or the user of DATABASE_URL).
func (p *Postgres) URL(database string) string {
	u, err := url.Parse(p.base)
	if err != nil || u.Scheme == "" {
		// base has the form "host=x dbname=y": the last dbname applies.
		return p.base + " dbname='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(database) + "'"
	}
	u.Path = "/" + database
	return u.String()
}

// Process returns the postmaster, or nil if the server is that of DATABASE_URL or RunShared.
func (p *Postgres) Process() *Process { return p.process }

// Stop ends a private server and its sessions, and waits until the server is gone. It does nothing
// for the zero value, and for the server of DATABASE_URL or RunShared.
func (p *Postgres) Stop() error {
	if p.process == nil {
		return nil
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if err := p.process.Signal(sig); err != nil {
			return fmt.Errorf("stop postgres: %w", err)
		}
		if p.process.endsWithin(shutdownTimeout) {
			if err := p.dir.close(); err != nil {
				return fmt.Errorf("stop postgres: %w", err)
			}
			return nil
		}
	}
	return fmt.Errorf("stop postgres: process %d does not end", p.process.Pid())
}
