// Command rates is `make bench`. It measures the rates and latencies of submissions, claims and
// reports of one server over HTTP, and how long a wake-up through NATS takes from one process to
// another. Most baselines are pgbench, the job queue River, and publications to NATS. In each round, each
// measurement follows that of its baseline; a first round is not counted. At the end the database must
// match the responses: it must have each accepted task and each accepted message once, and no others.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
)

func main() {
	o := options{connections: []int{1, 64, 256}}
	flag.IntVar(&o.rounds, "rounds", 5, "how often each measurement is made, after a first one that is not counted")
	flag.DurationVar(&o.duration, "duration", time.Second, "how long one measurement lasts at most")
	flag.DurationVar(&o.life, "life", 0, "how long tasks are submitted, claimed and reported at the same time in each round (default -duration)")
	flag.Float64Var(&o.rate, "rate", 0, "number of submissions per second in the measurement \"submit at fixed times\" (default half of the rate that was measured before)")
	flag.IntVar(&o.messages, "messages", 4000, "how many messages wait for the relay, at least 1000, which are two batches")
	flag.StringVar(&o.json, "json", "", "file for every measurement of every round, with its rate over time")
	flag.StringVar(&o.svg, "svg", "", "file for a plot of the rates over time and of the latencies")
	bench.ConnectionsFlag(&o.connections)
	flag.Parse()
	o.life = cmp.Or(o.life, o.duration)
	bench.Main("bench", func(ctx context.Context, progress io.Writer) (string, error) { return run(ctx, o, progress) })
}

func run(ctx context.Context, o options, progress io.Writer) (report string, err error) {
	if o.rounds < 1 || o.duration <= 0 || o.life <= 0 || o.rate < 0 || o.messages < 1000 {
		return "", errors.New("-rounds, -duration and -life must be more than 0, -rate not less than 0, -messages at least 1000")
	}
	err = bench.Prepare(ctx, progress, func(m *bench.Machine) (err error) {
		s, err := bench.NewStack(ctx, m)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		table := &bench.Table{Progress: progress}
		checked, err := measure(ctx, o, s, table)
		report = fmt.Sprintf("%s\n%s\n%s%s\n", table, m, text, checked)
		if o.json != "" {
			rounds, jsonErr := table.JSON(m)
			err = errors.Join(err, jsonErr, os.WriteFile(o.json, append(rounds, '\n'), 0o644))
		}
		if o.svg != "" {
			plot := table.SVG(submitKeyed, submitFixed, submitBatch, claimAndReport, wholeLife)
			err = errors.Join(err, os.WriteFile(o.svg, []byte(plot), 0o644))
		}
		return errors.Join(err, table.Err())
	})
	return report, err
}

const text = `Median of the rounds. One server with default settings, Postgres and the load generator share this machine, over the loopback. A
submission writes its key, its body, its row in the queue and its log row; pgbench inserts one row like the body in each transaction, through
the Unix socket, over as many connections, at most 64. River is a job queue that is called in its own process, without HTTP and without keys,
with the settings of its own benchmark: 32 goroutines insert jobs one by one, 4 insert 500 in each COPY, and jobs that do nothing are worked
until none is left. Submissions at fixed times: by default half of the rate with a key in the same round, at random times that are fixed in
advance; the durations count from these times and include the wait for a free connection; a warm-up is not counted. Whole life: tasks are
submitted one by one with keys while 4 senders claim up to 100 in one call and report as many in the next, and at most 2000 tasks are in
flight; the rate is that of reported tasks, the durations are those of submissions. Waiting claims, messages and the relay: every function has
its own process, and NATS runs in the load generator. Wake a waiting claim: a submission in another process wakes one of 1000 claims; the
duration is from before the submission until the response of the claim; the baseline is the response to the submission. Send a message: from
the response to the sender until the relay has marked the message as sent, in an otherwise idle system; the baseline is one acknowledged
publication to a stream. The baseline of the relay is as many such publications, all at once.
`

// measure makes every measurement in rounds and returns lines about the checks.
func measure(ctx context.Context, o options, s *bench.Stack, table *bench.Table) (checked string, err error) {
	var lines []string
	for _, part := range []func(context.Context, options, *bench.Stack, *bench.Table) (string, error){measureTasks, measureWake, measureMessages} {
		line, err := part(ctx, o, s, table)
		if err := errors.Join(err, s.StopProcesses()); err != nil {
			return strings.Join(lines, "\n"), err
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), nil
}

// measureTasks measures submissions, claims and reports in one server without NATS, in turn with pgbench
// and River.
func measureTasks(ctx context.Context, o options, s *bench.Stack, table *bench.Table) (checked string, err error) {
	river, err := s.Machine.StartRiver(ctx, table.Progress)
	if err != nil {
		return "", err
	}
	if river != nil {
		defer func() { err = errors.Join(err, river.Stop(ctx)) }()
	}
	address, err := s.Start(ctx, "", "NATS_URL=")
	if err != nil {
		return "", err
	}
	sources := baselineSources{s.Machine, river}
	t, roundOptions := tasks{bench.NewTasks(1)}, o
	roundOptions.life = min(o.life, o.duration) // in the first round, which is not counted
	err = table.Rounds(o.rounds, func(table *bench.Table) error {
		err := t.round(ctx, roundOptions, sources, address, table)
		roundOptions.life = o.life
		return err
	})
	if err != nil {
		return "", err
	}
	if err := errors.Join(t.Ledger.CheckTasksDone(), t.Ledger.CheckTasks(ctx, s.Conn)); err != nil {
		return "", err
	}
	submitted, _, reported := t.Ledger.Tasks()
	checked = fmt.Sprintf("Checked: %d tasks accepted, each once in the database, claimed once, and %d succeeded; no others.", submitted, reported)
	if river == nil {
		return checked + "\nRiver could not be downloaded: its ratios are missing.", nil
	}
	riverChecked, err := river.Check(ctx)
	return checked + "\n" + riverChecked, err
}

// round makes each measurement of tasks once.
func (t tasks) round(ctx context.Context, o options, sources baselineSources, address string, table *bench.Table) error {
	var submitRate float64 // with a key and the largest number of connections
	for _, phase := range t.phases(o, sources) {
		p := phase()
		p.Duration = o.duration
		r, err := p.Measure(ctx, address)
		if err != nil {
			return err
		}
		table.Add(r)
		if p.Name == submitKeyed {
			submitRate = r.Rate
		}
	}
	fixed := bench.Phase{
		Name: submitFixed, Connections: o.maxConnections(), Warmup: o.duration / 5, Duration: o.duration,
		MaxRows: bench.NoLimit, CallsPerSecond: cmp.Or(o.rate, submitRate/2), Call: t.Submit(bench.WithKey),
	}
	r, err := fixed.Run(ctx, address)
	if err != nil {
		return err
	}
	r.Compare(submitKeyed, submitRate)
	table.Add(r)
	if r, err = t.measureLife(ctx, o, sources.machine, address); err != nil {
		return err
	}
	table.Add(r)
	return t.Finish(ctx, address, batchRows)
}
