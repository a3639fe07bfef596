package main

import (
	"github.com/sendonce/sendonce/scripts/bench"
)

// tasks makes the measurements of tasks.
type tasks struct{ *bench.Tasks }

// senders and reporters are numbers of connections; batchRows and submitRows are numbers of rows in one call.
const (
	senders    = 4
	reporters  = 64
	batchRows  = 100
	submitRows = 500
)

// maxPgbenchConnections is the number of connections with which pgbench is fastest: on two cores it inserted 10,210 rows/s
// with 64 connections and 4,660 with 256.
const maxPgbenchConnections = 64

// The measurements that are plotted.
const (
	submitKeyed    = "submit with a key"
	submitBatch    = "submit 500 with keys"
	submitFixed    = "submit at fixed times"
	claimAndReport = "claim 100 and report 100"
	wholeLife      = "whole life"
)

// baselineSources measure the baselines of tasks. river is nil if its modules could not be downloaded.
type baselineSources struct {
	machine *bench.Machine // for pgbench
	river   *bench.River
}

// phases returns functions, each of which creates a phase that submits, claims or reports tasks. Call a function only after
// the previous phase has run: MaxRows depends on the tasks that are left.
func (t tasks) phases(o options, sources baselineSources) (list []func() bench.Phase) {
	pgbench := func(connections int) []bench.Baseline {
		return []bench.Baseline{sources.machine.Pgbench(min(connections, maxPgbenchConnections), o.duration/2)}
	}
	for _, n := range o.connections {
		list = append(list, func() bench.Phase {
			p := bench.Phase{Name: submitKeyed, Connections: n, MaxRows: bench.NoLimit, Call: t.Submit(bench.WithKey), Baselines: pgbench(n)}
			if n == o.maxConnections() {
				p.Baselines = append(p.Baselines, sources.river.Baseline("River, insert", "insert", o.duration/2)...)
			}
			return p
		})
	}
	return append(list,
		func() bench.Phase {
			return bench.Phase{Name: "submit without a key", Connections: o.maxConnections(), MaxRows: bench.NoLimit, Call: t.Submit(bench.WithoutKey), Baselines: pgbench(o.maxConnections())}
		},
		func() bench.Phase {
			return bench.Phase{Name: submitBatch, Connections: senders, MaxRows: bench.NoLimit, Batch: submitRows, Call: t.SubmitBatch,
				Baselines: sources.river.Baseline("River, insert 500", "insert-many", o.duration/2)}
		},
		func() bench.Phase {
			return bench.Phase{Name: "claim 100", Connections: senders, MaxRows: t.Waiting() / 2, Batch: batchRows, Call: t.Claim}
		},
		func() bench.Phase {
			return bench.Phase{Name: "report", Connections: reporters, MaxRows: t.Unreported() / 2, Call: t.Report, Baselines: pgbench(reporters)}
		},
		func() bench.Phase {
			return bench.Phase{Name: "report 100", Connections: senders, MaxRows: t.Unreported(), Batch: batchRows, Call: t.ReportBatch}
		},
		func() bench.Phase {
			return bench.Phase{Name: claimAndReport, Connections: senders, MaxRows: t.Waiting(), Batch: batchRows, Call: t.ClaimAndReport,
				Baselines: sources.river.Baseline("River, work", "work", 0)}
		})
}
