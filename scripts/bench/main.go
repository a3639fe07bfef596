// Command bench is `make bench`: how many messages one server takes on, hands
// out and has reported per second over HTTP, beside what pgbench gets out of the
// same Postgres, and how long what one process does takes to reach another through
// NATS. It starts a private durable Postgres and the real binary on the loopback,
// checks at the end that nothing was lost, and prints a table. With -two-phase it
// is `make bench-two-phase`: how long messages take to be accepted from a stream
// and to be saved, with a database that answers and with one that does not, and
// how fast what was accepted is saved. With -cold it is `make bench-cold`: how long
// each function takes from its start to its first answer, and what memory it keeps.
package main

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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	readyLimit = time.Minute
	drainLimit = 40 * time.Second // more than the server's own default of 25 s
)

// options is what a run may be told.
type options struct {
	duration    time.Duration // of each phase, at most
	connections []int         // of each submit phase, ascending
	messages    int           // that wait for the relay

	twoPhase bool
	stall    time.Duration // of the database
	backlog  int           // of accepted messages
	shards   int           // TWO_PHASE_SHARDS
	batch    int           // TWO_PHASE_BATCH_SIZE

	cold      bool
	runs      int      // of each function
	functions []string // that are started; none = all
}

// busiest is the last two numbers of connections: those of single reports and
// of pgbench.
func (o options) busiest() []int { return o.connections[max(0, len(o.connections)-2):] }

func main() {
	var o options
	flag.DurationVar(&o.duration, "duration", 5*time.Second, "how long each phase lasts")
	flag.Func("connections", "numbers of connections that submit, as 1,16,64,256 (default; with -two-phase 1,64,256)", func(list string) (err error) {
		o.connections, err = parseConnections(list)
		return err
	})
	flag.IntVar(&o.messages, "messages", 20_000, "how many messages wait for the relay, at least 1000")
	flag.BoolVar(&o.twoPhase, "two-phase", false, "measure two-phase acknowledgement of messages instead")
	flag.DurationVar(&o.stall, "stall", 10*time.Second, "two-phase: for how long the database stalls")
	flag.IntVar(&o.backlog, "backlog", 50_000, "two-phase: how many accepted messages wait to be saved, at least 1000")
	flag.IntVar(&o.shards, "shards", 2, "two-phase: TWO_PHASE_SHARDS; one for each core saves fastest")
	flag.IntVar(&o.batch, "batch", 500, "two-phase: TWO_PHASE_BATCH_SIZE")
	flag.BoolVar(&o.cold, "cold", false, "measure the start of each function instead")
	flag.IntVar(&o.runs, "runs", 20, "cold: how often each function is started, 1 to 500")
	flag.Parse()
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	r, err := run(ctx, o, os.Stderr)
	if r != nil {
		fmt.Print(r)
		err = errors.Join(err, r.wrong())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make bench:", err)
		os.Exit(1)
	}
}

// report is what a run found out; wrong says why it is not to be believed.
type report interface {
	fmt.Stringer
	wrong() error
}

// run gives nil, or as much as it found out before it failed.
func run(ctx context.Context, o options, progress io.Writer) (report, error) {
	if o.cold {
		return found(benchCold(ctx, o, progress))
	}
	if o.twoPhase {
		return found(benchTwoPhase(ctx, o, progress))
	}
	return found(bench(ctx, o, progress))
}

// found keeps a nil pointer from being a report.
func found[S interface {
	comparable
	report
}](s S, err error) (report, error) {
	var none S
	if s == none {
		return nil, err
	}
	return s, err
}

func parseConnections(list string) ([]int, error) {
	var connections []int
	for part := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > 1000 {
			return nil, errors.New("must be numbers from 1 to 1000, separated by commas")
		}
		connections = append(connections, n)
	}
	slices.Sort(connections)
	return connections, nil
}

// bench measures tasks, and what passes through NATS.
func bench(ctx context.Context, o options, progress io.Writer) (s *summary, err error) {
	if len(o.connections) == 0 {
		o.connections = []int{1, 16, 64, 256}
	}
	if o.duration <= 0 {
		return nil, errors.New("-duration must be more than 0")
	}
	if o.messages < 1000 {
		return nil, errors.New("-messages must be at least 1000, which the relay takes in two batches")
	}
	err = prepare(ctx, progress, func(binary string, postgres *sandbox.Postgres) error {
		s, err = measure(ctx, o, binary, postgres, progress)
		return err
	})
	return s, err
}

// benchTwoPhase measures messages that are accepted before they are saved.
func benchTwoPhase(ctx context.Context, o options, progress io.Writer) (s *letterSummary, err error) {
	if len(o.connections) == 0 {
		o.connections = []int{1, 64, 256}
	}
	if o.duration <= 0 || o.stall <= 0 {
		return nil, errors.New("-duration and -stall must be more than 0")
	}
	if o.backlog < 1000 {
		return nil, errors.New("-backlog must be at least 1000, which is saved in two batches")
	}
	if o.shards < 1 || o.shards > 64 || o.batch < 1 || o.batch > 500 {
		return nil, errors.New("-shards must be from 1 to 64, and -batch from 1 to 500")
	}
	err = prepare(ctx, progress, func(binary string, postgres *sandbox.Postgres) error {
		conn, err := pgx.Connect(ctx, postgres.URL("postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		s = &letterSummary{summary: summary{progress: progress}, shards: o.shards, batch: o.batch, letters: letters{ids: map[string][]string{}}}
		if err := s.facts.read(ctx, conn); err != nil {
			return err
		}
		if err := makeDatabase(ctx, conn, "bench", binary, postgres); err != nil {
			return err
		}
		return s.measureTwoPhase(ctx, o, binary, postgres.URL("bench"))
	})
	return s, err
}

// benchCold measures how functions start.
func benchCold(ctx context.Context, o options, progress io.Writer) (s *coldSummary, err error) {
	if o.runs < 1 || o.runs > 500 {
		return nil, errors.New("-runs must be from 1 to 500")
	}
	err = prepare(ctx, progress, func(binary string, postgres *sandbox.Postgres) error {
		conn, err := pgx.Connect(ctx, postgres.URL("postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		size, err := os.Stat(binary)
		if err != nil {
			return err
		}
		if binary, err = unpacked(binary); err != nil {
			return err
		}
		s = &coldSummary{summary: summary{progress: progress}, runs: o.runs, binary: size.Size()}
		if err := s.facts.read(ctx, conn); err != nil {
			return err
		}
		if err := makeDatabase(ctx, conn, "bench", binary, postgres); err != nil {
			return err
		}
		return s.measureCold(ctx, o, binary, postgres.URL("bench"))
	})
	return s, err
}

// prepare builds and starts what is measured, and ends it.
func prepare(ctx context.Context, progress io.Writer, measure func(binary string, postgres *sandbox.Postgres) error) (err error) {
	if os.Getenv("DATABASE_URL") != "" {
		return errors.New("DATABASE_URL is set, but a private Postgres is what is measured: unset it")
	}
	fmt.Fprintln(progress, "building the functions")
	dir, err := os.MkdirTemp("", "so-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "sendonce")
	if err := sandbox.Compile(ctx, "github.com/sendonce/sendonce/functions/sendonce", binary, false); err != nil {
		return err
	}
	fmt.Fprintln(progress, "starting Postgres")
	postgres, err := sandbox.StartPostgres(ctx, sandbox.Options{Durable: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	return measure(binary, postgres)
}

// makeDatabase makes a migrated database.
func makeDatabase(ctx context.Context, conn *pgx.Conn, name, binary string, postgres *sandbox.Postgres) error {
	if _, err := conn.Exec(ctx, "create database "+name); err != nil {
		return err
	}
	migrate := exec.CommandContext(ctx, binary, "migrate")
	migrate.Env = settings(postgres.URL(name))
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, out)
	}
	return nil
}

// measure runs pgbench on a copy of the fresh database, then one server, then
// functions that work together, on another copy.
func measure(ctx context.Context, o options, binary string, postgres *sandbox.Postgres, progress io.Writer) (*summary, error) {
	conn, err := pgx.Connect(ctx, postgres.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	s := &summary{duration: o.duration, progress: progress}
	if err := s.facts.read(ctx, conn); err != nil {
		return nil, err
	}
	if err := makeDatabase(ctx, conn, "bench", binary, postgres); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "create database events template bench"); err != nil {
		return nil, err
	}
	if err := s.measureFloor(ctx, conn, postgres, o); err != nil {
		return nil, err
	}
	if err := s.measureCalls(ctx, o, binary, settings(postgres.URL("bench"))); err != nil {
		return nil, err
	}
	if err := s.check(ctx, postgres.URL("bench")); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
		return nil, err
	}
	return s, s.measureEvents(ctx, o, binary, postgres.URL("events"))
}

func settings(database string) []string {
	return append(sandbox.RolesEnv(),
		"PATH="+os.Getenv("PATH"), "DATABASE_URL="+database, "APP_HOST=127.0.0.1", "PORT=0",
		"BASIC_AUTH_USERNAME="+username, "BASIC_AUTH_PASSWORD="+password, "SENDONCE_ENCRYPTION_KEYS="+sandbox.EncryptionKey,
		"SENDONCE_CALLER_SHARE=1") // all load is of one caller
}

// measureCalls takes tasks through their lives in one server.
func (s *summary) measureCalls(ctx context.Context, o options, binary string, env []string) (err error) {
	server, err := sandbox.Start(sandbox.Command{Path: binary, Env: env})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drain(server)) }()
	address, err := addressOf(ctx, server)
	if err != nil {
		return err
	}
	for _, p := range s.tasks.phases(o) {
		r, err := p.run(ctx, address)
		if err != nil {
			return err
		}
		s.add(r)
	}
	return nil
}

// measureFloor runs pgbench, where there is one, on a copy of the migrated
// database that is gone before the server starts.
func (s *summary) measureFloor(ctx context.Context, conn *pgx.Conn, postgres *sandbox.Postgres, o options) error {
	pgbench, err := findPgbench(ctx, conn)
	if err != nil || pgbench == "" {
		return err
	}
	for _, sql := range []string{"create database floor template bench", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	for _, n := range o.busiest() {
		// A few connections belong to us, to superusers and to autovacuum.
		r, err := floor(ctx, pgbench, postgres.URL("floor"), min(n, s.facts.maxConnections-10), o.duration)
		if err != nil {
			return err
		}
		s.add(r)
		s.floor = max(s.floor, r.rate)
	}
	for _, sql := range []string{"drop database floor", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// addressOf waits until the server is ready and gives the port that it took.
func addressOf(ctx context.Context, server *sandbox.Process) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := server.WaitFor(ctx, `"msg":"listening"`); err != nil {
		return "", err
	}
	address := text([]byte(server.Output()), "address")
	return address, server.WaitReady(ctx, "http://"+address+"/readyz")
}

func drain(server *sandbox.Process) error {
	code, err := server.Terminate(drainLimit)
	if err == nil && code != 0 {
		err = fmt.Errorf("the server ended with %d", code)
	}
	return err
}
