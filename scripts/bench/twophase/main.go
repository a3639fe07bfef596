// Command twophase is `make bench-two-phase`. It measures how long it takes until a message is accepted (it
// is in a stream of NATS), also while the database stalls; how long it takes until a message is saved (it is
// in Postgres); and how fast accepted messages are saved. In each round, each measurement follows that of its
// baseline; the first round is not counted. At the end every acknowledged message must be in the database
// once, and must have reached its receiver at least once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

func main() {
	o := options{connections: []int{1, 64, 256}}
	flag.IntVar(&o.rounds, "rounds", 5, "how often each measurement is made, after a first one that is not counted")
	flag.DurationVar(&o.duration, "duration", 2*time.Second, "how long one measurement lasts")
	flag.DurationVar(&o.stall, "stall", 5*time.Second, "how long the database stalls in each round")
	flag.IntVar(&o.backlog, "backlog", 10_000, "how many accepted messages wait at the start of each measurement of saving, at least 1000, which are two batches")
	flag.IntVar(&o.shards, "shards", 2, "TWO_PHASE_SHARDS; one for each core saves fastest")
	flag.IntVar(&o.batch, "batch", 500, "TWO_PHASE_BATCH_SIZE")
	bench.ConnectionsFlag(&o.connections)
	flag.Parse()
	bench.Main("bench-two-phase", func(ctx context.Context, progress io.Writer) (string, error) { return run(ctx, o, progress) })
}

func run(ctx context.Context, o options, progress io.Writer) (report string, err error) {
	if o.rounds < 1 || o.duration <= 0 || o.stall <= 0 || o.backlog < 1000 {
		return "", errors.New("-rounds, -duration and -stall must be more than 0, -backlog at least 1000")
	}
	if o.shards < 1 || o.shards > 64 || o.batch < 1 || o.batch > 500 {
		return "", errors.New("-shards must be from 1 to 64, and -batch from 1 to 500")
	}
	err = bench.Prepare(ctx, progress, func(m *bench.Machine) (err error) {
		stack, err := bench.NewStack(ctx, m, "TWO_PHASE_ENABLED=true", "SENDONCE_STREAM_USERS_MB=8192", fmt.Sprint("TWO_PHASE_SHARDS=", o.shards), fmt.Sprint("TWO_PHASE_BATCH_SIZE=", o.batch))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stack.Close()) }()
		table := &bench.Table{Progress: progress}
		t := &twoPhase{Stack: stack, o: o, ledger: load.NewLedger()}
		checked, err := t.measure(ctx, table)
		report = fmt.Sprintf("%s\n%s\nSettings: TWO_PHASE_SHARDS=%d, TWO_PHASE_BATCH_SIZE=%d, and a stream USERS that keeps all messages of the run; all others are defaults.\n%s%s\n", table, m, o.shards, o.batch, text, checked)
		return errors.Join(err, table.Err())
	})
	return report, err
}

const text = `Median of the rounds. A server with all functions, a trigger, Postgres and the load generator, in which NATS runs, share this machine.
Accepted messages are saved and relayed while others are accepted, except while a backlog is built up. pgbench inserts one row in each
transaction; publish publishes a message to a stream and waits for the acknowledgement; both over as many connections. The baseline of a
stalled database is the same server with a healthy database: the ratio is that of the p99. Both reach Postgres through a proxy. One backlog
is saved by a process that only saves, another by the server while it relays the saved messages; the rate is counted in Postgres, from the first
transaction to the last, and pgbench inserts over as many connections as there are shards.
`

func (t *twoPhase) measure(ctx context.Context, table *bench.Table) (string, error) {
	for _, part := range []func(context.Context, *bench.Table) error{t.measureAcks, t.measureStall, t.measureSaving} {
		if err := errors.Join(part(ctx, table), t.StopProcesses()); err != nil {
			return "", err
		}
	}
	return t.check(ctx)
}

// startAll starts a server with all functions, and its trigger. It waits until the trigger has created its consumers.
func (t *twoPhase) startAll(ctx context.Context, more ...string) (address string, err error) {
	if address, err = t.Start(ctx, "", more...); err != nil {
		return "", err
	}
	if _, err = t.StartTrigger(address); err != nil {
		return "", err
	}
	_, err = t.waitSaved(ctx)
	return address, err
}

// measureAcks measures messages with the acknowledgement "saved", and messages with "accepted".
func (t *twoPhase) measureAcks(ctx context.Context, table *bench.Table) error {
	address, err := t.startAll(ctx)
	if err != nil {
		return err
	}
	return table.Rounds(t.o.rounds, func(table *bench.Table) error {
		for _, n := range t.o.connections {
			p := t.phase(saved, saved, n)
			p.Baselines = []bench.Baseline{t.Machine.Pgbench(n, t.o.duration/2)}
			r, err := p.Measure(ctx, address)
			if err != nil {
				return err
			}
			table.Add(r)
			if err := t.waitIdle(ctx); err != nil {
				return err
			}
			baseline, err := t.publish(ctx, n)
			if err != nil {
				return err
			}
			if r, err = t.phase(accepted, accepted, n).Run(ctx, address); err != nil {
				return err
			}
			r.Compare("publish", baseline)
			table.Add(r)
			if err := t.waitIdle(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// measureStall compares accepted messages while the database responds and while it does not.
func (t *twoPhase) measureStall(ctx context.Context, table *bench.Table) error {
	proxy, err := sandbox.StartProxy(t.Machine.URL())
	if err != nil {
		return err
	}
	defer proxy.Close()
	address, err := t.startAll(ctx, "DATABASE_URL="+proxy.URL())
	if err != nil {
		return err
	}
	n := t.o.connections[len(t.o.connections)/2]
	return table.Rounds(t.o.rounds, func(table *bench.Table) error {
		healthy, err := t.phase("accepted, through a proxy", accepted, n).Run(ctx, address)
		if err != nil {
			return err
		}
		table.Add(healthy)
		if err := t.waitIdle(ctx); err != nil {
			return err
		}
		p := t.phase("accepted, database stalled", accepted, n)
		p.Duration = t.o.stall
		proxy.Stall()
		r, err := p.Run(ctx, address)
		proxy.Resume()
		if err != nil {
			return err
		}
		r.Ratios = []bench.Ratio{{Baseline: "p99, healthy", Ratio: r.Latency(0.99).Seconds() / healthy.Latency(0.99).Seconds()}}
		table.Add(r)
		return t.waitIdle(ctx)
	})
}

// savedRateSQL returns the rows per second from the first transaction to the last, for messages after
// the sequence number $1. saved_at is the start of the transaction of a row, so the rows of the last
// transaction are not counted: when this transaction ended is not known.
const savedRateSQL = `
with s as (select saved_at from accepted_messages where accept_seq > $1), ends as (select min(saved_at) as oldest, max(saved_at) as newest from s)
select coalesce(count(*) filter (where saved_at < newest) / nullif(extract(epoch from newest - oldest), 0), 0)::float8
from s, ends group by newest, oldest`

// measureSaving measures how fast a backlog of accepted messages is saved, by a process that does
// nothing else, and by a server that relays the messages at the same time.
func (t *twoPhase) measureSaving(ctx context.Context, table *bench.Table) error {
	serverAddress, err := t.Start(ctx, "")
	if err != nil {
		return err
	}
	saveAddress, err := t.Start(ctx, "save")
	if err != nil {
		return err
	}
	return table.Rounds(t.o.rounds, func(table *bench.Table) error {
		for _, c := range []struct{ name, address string }{{"save a backlog", saveAddress}, {"save and relay a backlog", serverAddress}} {
			r, err := t.saveBacklog(ctx, serverAddress, c.address)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.Name = c.name
			table.Add(r)
		}
		return nil
	})
}

// saveBacklog submits messages to serverAddress without a trigger, and then measures how fast the functions at
// saveAddress save them.
func (t *twoPhase) saveBacklog(ctx context.Context, serverAddress, saveAddress string) (r bench.Result, err error) {
	baseline, err := t.Machine.PgbenchRate(ctx, t.o.shards, t.o.duration/2)
	if err != nil {
		return r, err
	}
	lastSeq, err := t.waitSaved(ctx)
	if err != nil {
		return r, err
	}
	p := t.phase("accepted", accepted, t.o.connections[len(t.o.connections)/2])
	p.MaxRows, p.Duration = t.o.backlog, bench.CallTimeout
	if r, err = p.Run(ctx, serverAddress); err != nil || r.Err() != nil {
		return r, errors.Join(err, r.Err())
	}
	stop, err := t.StartTrigger(saveAddress)
	if err != nil {
		return r, err
	}
	if _, err = t.waitSaved(ctx); err == nil && saveAddress == serverAddress {
		err = t.waitIdle(ctx)
	}
	r = bench.Result{Connections: t.o.shards}
	if err = errors.Join(err, stop()); err == nil {
		err = t.Conn.QueryRow(ctx, savedRateSQL, int64(lastSeq)).Scan(&r.Rate)
	}
	r.Compare("pgbench", baseline)
	return r, err
}
