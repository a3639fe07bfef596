package main

import (
	"context"
	"sync/atomic"

	"github.com/sendonce/sendonce/scripts/bench"
)

// inFlight is the maximum number of tasks that are submitted and not yet reported. With a lower limit, claims often return
// less than a batch. With a higher limit, the rate is the same and tasks wait longer.
const inFlight = 2000

// life measures the whole life of tasks: it submits them one by one and, at the same time, claims and reports them in
// batches.
type life struct {
	tasks
	slots   chan struct{} // has one element for each task in flight
	batches chan struct{} // has one element for each batchRows tasks that can be claimed
	added   atomic.Int64  // number of tasks added by addClaimable, in total
}

// measureLife measures a steady state with at most inFlight tasks. The rate is that of reported tasks; the
// durations are those of submissions.
func (t tasks) measureLife(ctx context.Context, o options, m *bench.Machine, address string) (bench.Result, error) {
	l := &life{tasks: t, slots: make(chan struct{}, inFlight), batches: make(chan struct{}, inFlight/batchRows+1)}
	submitPhase := bench.Phase{
		Name: wholeLife, Connections: o.maxConnections(), Warmup: o.life / 5, Duration: o.life,
		MaxRows: bench.NoLimit, Wait: l.takeSlot, Call: l.submit,
	}
	sendPhase := submitPhase
	sendPhase.Connections, sendPhase.Batch, sendPhase.Wait, sendPhase.Call = senders, batchRows, l.takeBatch, l.send
	baseline := m.Pgbench(min(submitPhase.Connections, maxPgbenchConnections), o.duration/2)
	rate, err := baseline.Rate(ctx)
	if err != nil {
		return bench.Result{}, err
	}
	var sends bench.Result
	var sendErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		sends, sendErr = sendPhase.Run(ctx, address)
	}()
	r, err := submitPhase.Run(ctx, address)
	<-done
	if err == nil {
		err = sendErr
	}
	r.Rate, r.Series = sends.Rate, sends.Series
	for text, n := range sends.Failures {
		r.Failures[text] += n
	}
	r.Compare(baseline.Name, rate)
	return r, err
}

func (l *life) takeSlot(ctx context.Context) bool {
	select {
	case l.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *life) submit(c *bench.Client, _ int) (int, error) {
	if _, err := l.SubmitOne(c, bench.WithKey); err != nil {
		<-l.slots
		return 0, err
	}
	l.addClaimable(1)
	return 1, nil
}

// addClaimable adds n tasks that can be claimed. Each time the total passes a multiple of batchRows, it adds a batch.
func (l *life) addClaimable(n int) {
	after := int(l.added.Add(int64(n)))
	before := after - n
	for range after/batchRows - before/batchRows {
		l.batches <- struct{}{}
	}
}

func (l *life) takeBatch(ctx context.Context) bool {
	select {
	case <-l.batches:
		return true
	case <-ctx.Done():
		return false
	}
}

// send claims and reports up to n tasks. The claim skips tasks that other claims have locked. Tasks that the claim did not
// return can still be claimed, so send adds them again with addClaimable.
func (l *life) send(c *bench.Client, n int) (int, error) {
	sent, err := l.ClaimAndReport(c, n)
	for range sent {
		<-l.slots
	}
	l.addClaimable(n - sent)
	return sent, err
}
