// Command bench is `make bench`: how many messages one server takes on, hands
// out and has reported per second over HTTP, beside what pgbench gets out of the
// same Postgres, and how long what one process does takes to reach another through
// NATS. It starts a private durable Postgres and the real binary on the loopback,
// checks at the end that nothing was lost, and prints a table.
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
}

// busiest is the last two numbers of connections: those of single reports and
// of pgbench.
func (o options) busiest() []int { return o.connections[max(0, len(o.connections)-2):] }

func main() {
	o := options{connections: []int{1, 16, 64, 256}}
	flag.DurationVar(&o.duration, "duration", 5*time.Second, "how long each phase lasts")
	flag.Func("connections", "numbers of connections that submit, as 1,16,64,256 (default)", func(list string) (err error) {
		o.connections, err = parseConnections(list)
		return err
	})
	flag.IntVar(&o.messages, "messages", 20_000, "how many messages wait for the relay, at least 1000")
	flag.Parse()
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	s, err := bench(ctx, o, os.Stderr)
	if s != nil {
		fmt.Print(s)
		err = errors.Join(err, s.wrong())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make bench:", err)
		os.Exit(1)
	}
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

// bench starts what is measured, measures, and ends it.
func bench(ctx context.Context, o options, progress io.Writer) (_ *summary, err error) {
	if o.duration <= 0 {
		return nil, errors.New("-duration must be more than 0")
	}
	if o.messages < 1000 {
		return nil, errors.New("-messages must be at least 1000, which the relay takes in two batches")
	}
	if os.Getenv("DATABASE_URL") != "" {
		return nil, errors.New("DATABASE_URL is set, but a private Postgres is what is measured: unset it")
	}
	fmt.Fprintln(progress, "building the functions")
	dir, err := os.MkdirTemp("", "so-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary := filepath.Join(dir, "sendonce")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/sendonce/sendonce/functions").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	fmt.Fprintln(progress, "starting Postgres")
	postgres, err := sandbox.StartPostgres(ctx, sandbox.Options{Durable: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	return measure(ctx, o, binary, postgres, progress)
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
	if _, err := conn.Exec(ctx, "create database bench"); err != nil {
		return nil, err
	}
	env := settings(postgres.URL("bench"))
	migrate := exec.CommandContext(ctx, binary, "migrate")
	migrate.Env = env
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("migrate: %w\n%s", err, out)
	}
	if _, err := conn.Exec(ctx, "create database events template bench"); err != nil {
		return nil, err
	}
	if err := s.measureFloor(ctx, conn, postgres, o); err != nil {
		return nil, err
	}
	if err := s.measureCalls(ctx, o, binary, env); err != nil {
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
	return []string{
		"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + database, "APP_HOST=127.0.0.1", "PORT=0",
		"BASIC_AUTH_USERNAME=" + username, "BASIC_AUTH_PASSWORD=" + password,
	}
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
