package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

const (
	submitters  = 32
	senders     = 8
	batchRows   = 20                     // tasks of a claim or report, on average
	maxRows     = 100                    // of a claim or report
	warmupPart  = 5                      // the warm-up is 1/warmupPart of the duration
	changeEvery = 200 * time.Millisecond // between calls of changePartitions
)

// claims measures the latency of claims while tasks are submitted, claimed and reported at a fixed rate.
type claims struct {
	options
	*bench.Tasks
	stack    *bench.Stack
	address  string
	table    strings.Builder
	progress io.Writer
}

// measureClaims returns a table, and a line about the checks.
func measureClaims(ctx context.Context, o options, s *bench.Stack, progress io.Writer) (table, checked string, err error) {
	address, err := s.Start(ctx, "")
	if err != nil {
		return "", "", err
	}
	c := &claims{options: o, Tasks: bench.NewTasks(1), stack: s, address: address, progress: progress}
	c.table.WriteString("| claims | tasks/s | p50 ms | p95 ms | p99 ms | slowest ms | ratio of p99 |\n|---|--:|--:|--:|--:|--:|--:|\n")
	previous, err := c.measure(ctx, "in empty tables", o.duration, bench.Result{})
	if err != nil {
		return "", "", err
	}
	if err := load.FillTasks(ctx, s.Conn, o.rows, progress); err != nil {
		return "", "", err
	}
	if previous, err = c.measure(ctx, fmt.Sprintf("beside %d finished tasks", o.rows), o.duration, previous); err != nil {
		return "", "", err
	}
	if err := c.measureWhileChanging(ctx, previous); err != nil {
		return "", "", err
	}
	if previous, err = c.measure(ctx, "without these changes", o.pin, previous); err != nil {
		return "", "", err
	}
	if err := c.measurePinned(ctx, previous); err != nil {
		return "", "", err
	}
	if err := c.Finish(ctx, address, maxRows); err != nil {
		return "", "", err
	}
	if err := errors.Join(c.Ledger.CheckTasksDone(), c.checkTasks(ctx)); err != nil {
		return "", "", err
	}
	_, _, reported := c.Ledger.Tasks()
	return c.table.String(), fmt.Sprintf("Checked: %d tasks accepted, claimed once, and reported.", reported), nil
}

// checkTasks compares the responses with the tables, without the tasks that load.FillTasks inserted: views hide these.
func (c *claims) checkTasks(ctx context.Context) error {
	for _, sql := range []string{
		"create schema measured",
		"create view measured.tasks as select * from public.tasks where id >= '" + load.AfterFilled + "'",
		"create view measured.task_done as select * from public.task_done where id >= '" + load.AfterFilled + "'",
		"create view measured.submission_keys as select * from public.submission_keys where id >= '" + load.AfterFilled + "'",
		"set search_path = measured, public",
	} {
		if _, err := c.stack.Conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return c.Ledger.CheckTasks(ctx, c.stack.Conn)
}

// measurePinned measures claims while an open transaction with a snapshot prevents vacuum from removing dead rows.
func (c *claims) measurePinned(ctx context.Context, previous bench.Result) error {
	conn, err := pgx.Connect(ctx, c.stack.Machine.URL())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range []string{"begin isolation level repeatable read", "select count(*) from task_live"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	_, err = c.measure(ctx, "beside a transaction open for "+c.pin.String(), c.pin, previous)
	return err
}

// measureWhileChanging measures claims, and at the same time calls changePartitions every changeEvery, with n = 0, 1, 2, …
func (c *claims) measureWhileChanging(ctx context.Context, previous bench.Result) error {
	changing, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		tick := time.NewTicker(changeEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			if err := c.changePartitions(ctx, n); err != nil {
				ended <- err
				return
			}
			select {
			case <-tick.C:
			case <-changing.Done():
				ended <- nil
				return
			}
		}
	}()
	_, err := c.measure(ctx, "while partitions are made and dropped", c.duration, previous)
	stop()
	return errors.Join(err, <-ended)
}

// changePartitions creates and drops partitions of the logs as sweep does. If n is below 20, it creates those of all months
// until n+4 months from now. For each log, it creates a partition for a month of the past, n months after January 2001, and drops
// this partition.
func (c *claims) changePartitions(ctx context.Context, n int) error {
	if n < 20 {
		if _, err := c.stack.Conn.Exec(ctx, "select make_log_partitions($1)", n+4); err != nil {
			return err
		}
	}
	month := time.Date(2001, time.Month(n+1), 1, 0, 0, 0, 0, time.UTC)
	for _, log := range []string{"receive_logs", "send_logs", "report_logs"} {
		name := log + month.Format("_200601")
		sql := fmt.Sprintf(`create table %[1]s (like %[2]s including defaults including constraints);
			alter table %[2]s attach partition %[1]s for values from ('%[3]s') to ('%[4]s')`,
			name, log, month.Format(time.RFC3339), month.AddDate(0, 1, 0).Format(time.RFC3339))
		if _, err := c.stack.Conn.Exec(ctx, sql); err != nil {
			return err
		}
		if _, err := c.stack.Conn.Exec(ctx, "select drop_log_partition($1, now() - interval '2 days')", name); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the load for d and adds a row about the claims to the table.
func (c *claims) measure(ctx context.Context, name string, d time.Duration, previous bench.Result) (bench.Result, error) {
	phase := func(name string, connections int, rowsPerCall int, call func(*bench.Client, int) (int, error)) bench.Phase {
		return bench.Phase{
			Name: name, Connections: connections, Warmup: d / warmupPart, Duration: d, MaxRows: bench.NoLimit, Batch: maxRows,
			CallsPerSecond: c.rate / float64(rowsPerCall), Call: call,
		}
	}
	phases := []bench.Phase{
		phase("submit", submitters, 1, c.Submit(bench.WithKey)),
		phase("claim", senders, batchRows, c.Claim),
		phase("report", senders, batchRows, c.ReportBatch),
	}
	results, errs := make([]bench.Result, len(phases)), make(chan error)
	for i, p := range phases {
		go func() {
			var err error
			results[i], err = p.Run(ctx, c.address)
			errs <- errors.Join(err, results[i].Err())
		}()
	}
	var err error
	for range phases {
		err = errors.Join(err, <-errs)
	}
	r := results[1] // that of the claims
	p99, ratio := r.Latency(0.99), "-"
	if previousP99 := previous.Latency(0.99); previousP99 > 0 {
		ratio = fmt.Sprintf("%.2f", p99.Seconds()/previousP99.Seconds())
	}
	fmt.Fprintf(&c.table, "| %s | %.0f | %.1f | %.1f | %.1f | %.1f | %s |\n", name, r.Rate, bench.MS(r.Latency(0.5)), bench.MS(r.Latency(0.95)), bench.MS(p99), bench.MS(r.Latency(1)), ratio)
	fmt.Fprintf(c.progress, "claims %s: p50 %.1f ms, p99 %.1f ms, slowest %.1f ms\n", name, bench.MS(r.Latency(0.5)), bench.MS(p99), bench.MS(r.Latency(1)))
	return r, err
}
