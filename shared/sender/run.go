package sender

import (
	"context"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	tasksPerSend     = 3                // per concurrent send: one waits, one is sent, one is reported
	claimWaitSeconds = 20               // how long a claim waits for tasks
	minPause         = time.Second / 2  // between the starts of claims that return no tasks, and after the first failed call
	maxPause         = 10 * time.Second // after repeatedly failed calls
	finalReportTime  = 10 * time.Second // for reports after the last send
	lateReturnTime   = 5 * time.Second  // for Send to return after its ctx has ended
	maxDelay         = time.Minute      // limit of RetryAfter, which delays all later sends
)

// run is the state of one Run of a sender.
type run struct {
	Config
	journal  *journal
	reporter *reporter
	lease    int // seconds

	running     context.Context // ends when the run stops; then no new attempt begins
	stop        context.CancelFunc
	failed      chan error      // the error that ended the run
	sending     context.Context // ends a grace period after running
	cancelSends context.CancelCauseFunc

	slots    chan struct{} // a semaphore: one element for each further task that may be claimed
	queue    chan *attempt // claimed, in the server's order
	markPace pace          // keeps Interval between the calls that mark tasks as sending
	sendPace pace          // keeps Interval between the sends too, because marking takes a varying time
	leases   sync.WaitGroup
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

// do claims, sends and reports tasks until the run stops. unreported has the reports that the last run did not
// deliver. If an error of the journal stopped the run, do returns it.
func (r *run) do(unreported []api.ReportRequest) error {
	defer r.stop()
	defer r.cancelSends(nil)
	unregister := context.AfterFunc(r.running, func() { time.AfterFunc(r.Grace, func() { r.cancelSends(errStopped) }) })
	defer unregister()

	reportCtx, stopReports := context.WithCancel(context.WithoutCancel(r.running))
	defer stopReports()
	var reporting, workers sync.WaitGroup
	reporting.Go(func() { r.reporter.run(reportCtx) })
	for _, report := range unreported {
		r.reporter.add(pendingReport{report: report, journaled: true, done: r.trySlot()})
	}
	for range r.Concurrency {
		workers.Go(func() {
			for a := range r.queue {
				r.process(a)
			}
		})
	}
	r.claim()
	close(r.queue)
	workers.Wait()
	r.reporter.close()
	timeout := time.AfterFunc(finalReportTime, stopReports)
	defer timeout.Stop()
	reporting.Wait()
	r.leases.Wait()
	select {
	case err := <-r.failed:
		return err
	default:
		return nil
	}
}

// trySlot takes a slot for a report of the last run, if one is free, and returns a function that frees it. While
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

// claim claims tasks for all free slots until the run stops.
func (r *run) claim() {
	pause := minPause
	connected, down := false, outage{}
	for slots := r.waitForSlots(0); slots > 0; slots = r.waitForSlots(slots) {
		started, wait := time.Now(), claimWaitSeconds
		if !connected {
			wait = 0 // an immediate response, to log that the service is available
		}
		tasks, err := r.Client.Claim(r.running, api.ClaimRequest{
			AppID: r.AppID, Queue: r.Queue, Limit: &slots, LeaseSeconds: &r.lease, MarksSending: true, Wait: &wait,
		})
		for _, t := range tasks {
			r.queue <- r.newAttempt(t)
		}
		slots -= len(tasks)
		if err == nil && !connected {
			connected = true
			r.logConnected(down.end())
		}
		switch {
		case err != nil && r.running.Err() == nil:
			connected = false
			if down.shouldLog(err) {
				r.Log.WarnContext(r.running, LogClaimFailed, "error", err)
			}
			sleep(r.running, pause)
			pause = min(2*pause, maxPause)
		case len(tasks) == 0:
			sleep(r.running, time.Until(started.Add(minPause)))
			pause = minPause
		default:
			pause = minPause
		}
	}
}

func (r *run) logConnected(away time.Duration) {
	if away == 0 {
		r.Log.InfoContext(r.running, LogConnected)
		return
	}
	r.Log.InfoContext(r.running, LogConnected, "away", away.Round(time.Second).String())
}

// waitForSlots takes all free slots in addition to the held ones that the caller already has, and returns the
// total. It waits until the total is at least 1. It returns 0 when the run stops.
func (r *run) waitForSlots(held int) int {
	if held == 0 {
		select {
		case <-r.slots:
			held++
		case <-r.running.Done():
		}
	}
	for r.running.Err() == nil {
		select {
		case <-r.slots:
			held++
		default:
			return held
		}
	}
	return 0
}
