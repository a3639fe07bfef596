package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// summary is what a run found out.
type summary struct {
	duration time.Duration
	facts    facts
	results  []result
	floor    float64 // the best rate of pgbench; 0 = not measured
	tasks    tasks
	counts   counts
	progress io.Writer
}

// facts is what the figures depend on besides this program.
type facts struct {
	postgres, fsync, synchronousCommit string
	maxConnections                     int
	memory                             bool // the data lies in memory, where fsync costs nothing
}

const factsSQL = `
select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('max_connections')::int, current_setting('data_directory')`

func (f *facts) read(ctx context.Context, conn *pgx.Conn) error {
	var data string
	if err := conn.QueryRow(ctx, factsSQL).Scan(&f.postgres, &f.fsync, &f.synchronousCommit, &f.maxConnections, &data); err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	const tmpfs = 0x01021994
	var disk syscall.Statfs_t
	if err := syscall.Statfs(data, &disk); err != nil {
		return fmt.Errorf("the file system of %s: %w", data, err)
	}
	f.memory = int64(disk.Type) == tmpfs
	return nil
}

// counts is what the database holds at the end, beside what was promised.
type counts struct {
	accepted, tasks, live, succeeded int
}

// countsSQL counts an accepted id once, however often it was given.
const countsSQL = `
select (select count(*) from tasks), (select count(*) from task_live),
    (select count(distinct d.id) from unnest($1::text[]::uuid[]) as a (id) join task_done d using (id) where d.status = 2)`

// check counts in the database what became of the accepted tasks.
func (s *summary) check(ctx context.Context, database string) error {
	fmt.Fprintln(s.progress, "counting in the database")
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	c := counts{accepted: len(s.tasks.accepted)}
	if err := conn.QueryRow(ctx, countsSQL, s.tasks.accepted).Scan(&c.tasks, &c.live, &c.succeeded); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	s.counts = c
	return nil
}

// wrong says why the figures are not to be believed; nil when nothing failed and
// every accepted task, and no other, has succeeded.
func (s *summary) wrong() error {
	c := s.counts
	if len(s.failures()) > 0 {
		return fmt.Errorf("calls failed: %s", strings.Join(s.failures(), "; "))
	}
	if c.accepted == 0 || c.tasks != c.accepted || c.succeeded != c.accepted || c.live != 0 {
		return fmt.Errorf("%d ids were accepted, but the database has %d tasks, %d of the accepted succeeded and %d are live",
			c.accepted, c.tasks, c.succeeded, c.live)
	}
	return nil
}

// failures lists what failed, by phase and kind.
func (s *summary) failures() []string {
	var list []string
	for _, r := range s.results {
		list = append(list, r.failed()...)
	}
	return list
}

func (r result) failed() []string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(r.failures)) {
		list = append(list, fmt.Sprintf("%s, %d connections: %d x %s", r.name, r.connections, r.failures[what], what))
	}
	return list
}

func (s *summary) add(r result) {
	s.results = append(s.results, r)
	figure := fmt.Sprintf("%8.0f rows/s", r.rate)
	if r.rate == 0 {
		figure = fmt.Sprintf("%8s p50", r.p50.Round(10*time.Microsecond))
	}
	fmt.Fprintf(s.progress, "%-24s %4d connections %s\n", r.name, r.connections, figure)
	for _, failure := range r.failed() {
		fmt.Fprintln(s.progress, "failed:", failure)
	}
}

// String is the table in Markdown with what must be known to read it.
func (s *summary) String() string {
	var b strings.Builder
	b.WriteString("| call | connections | rows/s | p50 ms | p99 ms | of pgbench's best | cores used by the generator |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range s.results {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %s | %s |\n", r.name, r.connections, known("%.0f", r.rate),
			known("%.1f", r.p50.Seconds()*1000), known("%.1f", r.p99.Seconds()*1000), s.ratio(r), known("%.2f", r.cores))
	}
	fmt.Fprintf(&b, "\n%s\n", s.machine())
	fmt.Fprintf(&b, "One server with default settings, Postgres and the load generator share this machine, over the loopback; at most %s a phase.\n", s.duration)
	b.WriteString("A submission writes its key, its body, its live row and its log row. ")
	if s.floor > 0 {
		b.WriteString("pgbench inserts one row like the body per transaction, through\nthe Unix socket, with no more connections than the server takes.\n\n")
	} else {
		b.WriteString("pgbench was not found: its rows are left out.\n\n")
	}
	b.WriteString(eventsText)
	if failures := s.failures(); len(failures) > 0 {
		fmt.Fprintf(&b, "Failed: %s.\n", strings.Join(failures, "; "))
	} else {
		b.WriteString("Failed: none.\n")
	}
	fmt.Fprintf(&b, "Checked: %d ids accepted, %d tasks in the database, %d of the accepted succeeded, %d live.\n",
		s.counts.accepted, s.counts.tasks, s.counts.succeeded, s.counts.live)
	return b.String()
}

// machine is what the figures were measured on.
func (s *summary) machine() string {
	f := s.facts
	disk := ""
	if f.memory {
		disk = " (the data lies in memory, where that costs nothing)"
	}
	return fmt.Sprintf("%d cores (%s/%s), PostgreSQL %s, fsync %s%s, synchronous_commit %s, max_connections %d, %s.",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, f.postgres, f.fsync, disk, f.synchronousCommit, f.maxConnections, runtime.Version())
}

func (s *summary) ratio(r result) string {
	if !strings.HasPrefix(r.name, "submit") || s.floor == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", r.rate/s.floor)
}

func known(format string, value float64) string {
	if value == 0 {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

// cpuTime is what this process has used of all cores.
func cpuTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
