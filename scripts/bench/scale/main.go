// Command scale is `make bench-scale`. It measures how rates and latencies change with more processes, with
// millions of finished tasks, while log partitions are created and dropped, and beside a transaction that
// keeps vacuum from removing dead rows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
)

func main() {
	var o options
	flag.IntVar(&o.connections, "connections", 256, "number of connections to all processes together, while numbers of processes are measured")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each number of processes is measured")
	flag.DurationVar(&o.duration, "duration", 10*time.Second, "how long a measurement of claims lasts; a measurement of processes lasts a tenth of this")
	flag.Float64Var(&o.rate, "rate", 1000, "tasks per second that are submitted, claimed and reported while claims are measured")
	flag.IntVar(&o.rows, "rows", 10_000_000, "number of finished tasks in the tables in all measurements of claims but the first")
	flag.DurationVar(&o.pin, "pin", 10*time.Minute, "how long claims are measured beside a transaction that keeps vacuum from removing dead rows, and before it without one")
	flag.Parse()
	bench.Main("bench-scale", func(ctx context.Context, progress io.Writer) (string, error) { return run(ctx, o, progress) })
}

func run(ctx context.Context, o options, progress io.Writer) (report string, err error) {
	if o.connections < 1 || o.rounds < 1 || o.duration <= 0 || o.rate <= 0 || o.rows < 0 || o.pin < o.duration {
		return "", errors.New("-connections, -rounds, -duration and -rate must be more than 0, -rows not less than 0, -pin at least -duration")
	}
	err = bench.Prepare(ctx, progress, func(m *bench.Machine) (err error) {
		s, err := bench.NewStack(ctx, m, "NATS_URL=")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		processes, err := measureProcesses(ctx, o, s, progress)
		if err != nil {
			return err
		}
		if err := s.StopProcesses(); err != nil {
			return err
		}
		claims, checked, err := measureClaims(ctx, o, s, progress)
		report = strings.Join([]string{processes, claims, m.String(), fmt.Sprintf(text, o.connections, o.rate), checked, ""}, "\n")
		return err
	})
	return report, err
}

const text = `Processes: 1, 2 and 4 processes of the function submit share one Postgres and are measured in each round, with %d connections over all
processes. The load generator runs on the same machine. The ratio is to one process in the same round.
Claims: %.0f tasks a second are submitted one by one with keys, and as many are claimed and reported in batches, at times that are fixed in
advance. The durations of claims count from these times. One measurement is made beside an open transaction: it has a snapshot, so that vacuum
cannot remove rows that were updated or deleted after it began. In another, partitions of all logs are created and dropped every 200 ms.
The ratio of a p99 is to that of the row before, and in the row "without these changes" to that of the row "beside … finished tasks".
`
