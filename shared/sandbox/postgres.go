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
	startLimit    = 2 * time.Minute // crash recovery of a large database takes its time
	lingerLimit   = 15 * time.Second
	shutdownLimit = 20 * time.Second
)

// Options says how StartPostgres starts a private server.
type Options struct {
	Dir     string    // kept between runs; "" = temporary, removed by Stop, in memory unless Durable
	Durable bool      // what is committed survives the machine; false (tests) = it survives kill -9 of Postgres only
	Log     io.Writer // gets the server's log; nil = nobody
}

// Postgres is a running server, a private one unless DATABASE_URL names another.
// The zero value stands for one that somebody else runs: Stop leaves it alone.
type Postgres struct {
	base    string // a connection string whose database is replaced by URL
	place   *place
	process *Process
}

// StartPostgres gives the server that DATABASE_URL names, or starts a private
// one: from the machine's binaries, else from downloaded ones. It returns once
// the server accepts connections. One directory has one server at a time; what a
// killed one left behind is cleaned up first.
func StartPostgres(ctx context.Context, o Options) (*Postgres, error) {
	if base := os.Getenv("DATABASE_URL"); base != "" {
		return &Postgres{base: base}, nil
	}
	return startPrivate(ctx, o, func(ctx context.Context, p *Postgres) error { return p.start(ctx, o) })
}

// startPrivate has start make and run a server in its place.
func startPrivate(ctx context.Context, o Options, start func(context.Context, *Postgres) error) (*Postgres, error) {
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	parent := ""
	if !o.Durable {
		parent = memory()
	}
	place, err := openPlace(o.Dir, parent, as)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	p := &Postgres{place: place, base: "postgres://" + Owner + "@/postgres?host=" + place.socket}
	if err := start(ctx, p); err != nil {
		place.close()
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
	if err := errors.Join(p.askForPasswords(), p.clean(ctx)); err != nil {
		return err
	}
	return p.run(ctx, bin, o)
}

// askForPasswords has the server ask everybody but the owner for a password. Only
// the user that it runs as, and root, reach its socket.
func (p *Postgres) askForPasswords() error {
	const rules = "local all,replication " + Owner + " trust\nlocal all all scram-sha-256\n"
	file := filepath.Join(p.place.data(), "pg_hba.conf")
	return errors.Join(os.WriteFile(file, []byte(rules), 0o600), p.place.own(file))
}

// dataMajor is the version that wrote the data, 0 when there is none yet.
func (p *Postgres) dataMajor() (int, error) {
	info, err := os.Stat(p.place.data())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != p.place.uid() {
		return 0, fmt.Errorf("%s belongs to user %d and Postgres would run as user %d: change its owner or use another directory",
			p.place.data(), stat.Uid, p.place.uid())
	}
	text, err := os.ReadFile(filepath.Join(p.place.data(), "PG_VERSION"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// initialise makes the data directory. It appears under its name only when it
// is complete.
func (p *Postgres) initialise(ctx context.Context, bin binaries, durable bool) error {
	if err := p.place.own(p.place.root); err != nil {
		return err
	}
	unfinished := p.place.data() + ".new"
	args := []string{"-D", unfinished, "-U", Owner, "-A", "trust", "-E", "UTF8"}
	if !durable {
		args = append(args, "--no-sync")
	}
	// Byte order sorts alike everywhere; C.UTF-8 knows letters beyond ASCII, but
	// not every system has it.
	var initdb *Process
	for _, locale := range [][]string{{"--locale=C", "--lc-ctype=C.UTF-8"}, {"--no-locale"}} {
		if err := os.RemoveAll(unfinished); err != nil {
			return err
		}
		var err error
		initdb, err = Start(Command{
			Path: filepath.Join(bin.dir, "initdb"), Args: append(slices.Clone(args), locale...),
			Env: serverEnv(), Dir: p.place.root, user: p.place.as,
		})
		if err != nil {
			return err
		}
		select {
		case <-initdb.Exited():
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("initdb: %w", ctx.Err()), initdb.Kill())
		}
		if initdb.ExitCode() == 0 {
			return os.Rename(unfinished, p.place.data())
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

// clean makes room for a new server. We hold the lock, so a postmaster found
// here is an orphan, and its pid may have gone to somebody else since.
func (p *Postgres) clean(ctx context.Context) error {
	pidFile := filepath.Join(p.place.data(), "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
		if err := endOrphan(ctx, pid, p.place.data()); err != nil {
			return err
		}
	}
	for _, stale := range []string{pidFile, filepath.Join(p.place.socket, ".s.PGSQL.5432"), filepath.Join(p.place.socket, ".s.PGSQL.5432.lock")} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// endOrphan shuts down the postmaster of data if it is process pid.
func endOrphan(ctx context.Context, pid int, data string) error {
	deadline := time.Now().Add(lingerLimit)
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

// commandLine is how process pid was started, each word followed by a space, or
// "" when there is none.
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

// run starts the server and waits until it accepts connections. The backends of
// a killed postmaster keep its shared memory for a moment: it is tried again.
func (p *Postgres) run(ctx context.Context, bin binaries, o Options) error {
	for deadline := time.Now().Add(lingerLimit); ; {
		process, err := Start(p.command(bin, o))
		if err != nil {
			return err
		}
		if err = p.accepts(ctx, process); err == nil {
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
	settings := []string{
		"listen_addresses=", "port=5432", "unix_socket_directories=" + p.place.socket,
		"max_connections=300", "autovacuum_naptime=10s", "max_wal_size=4GB", "checkpoint_timeout=15min",
		"timezone=UTC", "log_timezone=UTC", "lc_messages=C", "log_destination=stderr", "logging_collector=off",
	}
	if o.Durable {
		settings = append(settings, "shared_buffers=256MB", "wal_compression=on")
	} else {
		// synchronous_commit stays on: with fsync off it costs next to nothing, and
		// without it a commit that was answered could be lost to a kill -9.
		settings = append(settings, "shared_buffers=128MB", "fsync=off", "full_page_writes=off")
	}
	args := []string{"-D", p.place.data()}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	c := Command{
		Path: filepath.Join(bin.dir, "postgres"), Args: args, Env: serverEnv(), Dir: p.place.root,
		Output: o.Log, OrphanSignal: syscall.SIGINT, user: p.place.as,
	}
	if p.place.temporary {
		c.OrphanSweep = p.place.root
	}
	return c
}

func (p *Postgres) accepts(ctx context.Context, process *Process) error {
	for {
		conn, err := pgx.Connect(ctx, p.base)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-process.Exited():
			return fmt.Errorf("the server exited with %d:\n%s", process.ExitCode(), process.Output())
		case <-ctx.Done():
			return fmt.Errorf("the server does not accept connections: %w\n%s", err, process.Output())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// URL is the connection string for database as the owner.
func (p *Postgres) URL(database string) string {
	u, err := url.Parse(p.base)
	if err != nil || u.Scheme == "" {
		// Keywords and values: the last dbname counts.
		return p.base + " dbname='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(database) + "'"
	}
	u.Path = "/" + database
	return u.String()
}

// Process is the postmaster, nil when somebody else runs the server.
func (p *Postgres) Process() *Process { return p.process }

// Stop ends a private server and waits until it is gone: sessions are cut off
// and their transactions rolled back. A server that DATABASE_URL names is left alone.
func (p *Postgres) Stop() error {
	if p.process == nil {
		return nil
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if err := p.process.Signal(sig); err != nil {
			return fmt.Errorf("stop postgres: %w", err)
		}
		if p.process.endsWithin(shutdownLimit) {
			break
		}
	}
	if err := p.place.close(); err != nil {
		return fmt.Errorf("stop postgres: %w", err)
	}
	return nil
}
