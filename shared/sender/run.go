package sender

import (
	"context"
	"sync"
	"time"
)

const tasksPerSend = 3 // tasks claimed for each concurrent send: one waits, one is sent, one is reported

// run is the state of one Run of a sender.
type run struct {
	Config
	journal  *journal
	reporter *reporter
	lease    int // seconds

	running     context.Context // ends when the run stops; after that no attempt begins
	stop        context.CancelFunc
	failed      chan error      // receives the error that stopped the run; empty = no error
	sending     context.Context // ends a grace period after running
	cancelSends context.CancelCauseFunc

	slots    chan struct{}  // the free slots: one element for each further task that may be claimed
	queue    chan *attempt  // claimed tasks that wait for a worker, in the server's order
	markPace pace           // keeps Interval between the calls that mark tasks as sending
	sendPace pace           // keeps Interval between the sends too, because marking takes a varying time
	leases   sync.WaitGroup // the goroutines that extend leases
}

func newRun(ctx context.Context, cfg Config, j *journal) *run {
	r := &run{Config: cfg, journal: j, lease: int(cfg.Lease / time.Second), failed: make(chan error, 1)}
	r.running, r.stop = context.WithCancel(ctx)
	r.sending, r.cancelSends = context.WithCancelCause(context.WithoutCancel(ctx))
	slots := tasksPerSend * cfg.Concurrency
	r.slots, r.queue = make(chan struct{}, slots), make(chan *attempt, slots)
	for range slots {
		r.slots <- struct{}{}
	}
	r.markPace.interval, r.sendPace.interval = cfg.Interval, cfg.Interval
	r.reporter = newReporter(cfg, j)
	return r
}

// trySlot takes a slot for a report of the last run if a slot is free. free returns the slot, if one was taken. While
// old reports occupy slots, fewer new tasks are claimed, so unreported tasks do not accumulate over several runs.
func (r *run) trySlot() (free func()) {
	select {
	case <-r.slots:
		return func() { r.slots <- struct{}{} }
	default:
		return func() {}
	}
}

// fail ends the run because of err.
func (r *run) fail(err error) {
	select {
	case r.failed <- err:
	default: // the first error is kept
	}
	r.stop()
}
