package sender

import (
	"context"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	handPerSend = 3                // one waits, one is sent, one is reported
	claimWait   = 20               // seconds that a claim waits for work
	firstPause  = time.Second / 2  // between two claims without work, whatever the server answers
	longestRest = 10 * time.Second // between two calls that fail
	reportLimit = 10 * time.Second // for what is to be reported after the last send
	lateLimit   = 5 * time.Second  // that Send has to notice that its ctx ended
	longestHold = time.Minute      // of all sends, because the provider had enough of one
)

// run is one Run of a sender.
type run struct {
	Config
	journal  *journal
	reporter *reporter
	lease    int // seconds

	running context.Context // ends when nothing more is to be begun
	stop    context.CancelFunc
	broken  chan error      // why it ends by itself
	sending context.Context // ends the grace period later
	cut     context.CancelCauseFunc

	hand   chan struct{} // a place for each task that may be in hand
	queue  chan *attempt // claimed, in the server's order
	early  pace          // keeps tasks waiting while they are not yet marked as sending
	gate   pace          // spaces the sends, which the marks have put out of step
	leases sync.WaitGroup
}

func newRun(ctx context.Context, cfg Config, j *journal) *run {
	r := &run{Config: cfg, journal: j, lease: int(cfg.Lease / time.Second), broken: make(chan error, 1)}
	r.running, r.stop = context.WithCancel(ctx)
	r.sending, r.cut = context.WithCancelCause(context.WithoutCancel(ctx))
	places := handPerSend * cfg.Concurrency
	r.hand, r.queue = make(chan struct{}, places), make(chan *attempt, places)
	for range places {
		r.hand <- struct{}{}
	}
	r.early.interval, r.gate.interval = cfg.Interval, cfg.Interval
	r.reporter = newReporter(cfg, j)
	return r
}

// work gives the journal's error, if that is what ended it.
func (r *run) work(left []api.ReportRequest) error {
	defer r.stop()
	defer r.cut(nil)
	grace := context.AfterFunc(r.running, func() { time.AfterFunc(r.Grace, func() { r.cut(errStopped) }) })
	defer grace()

	speaking, hush := context.WithCancel(context.WithoutCancel(r.running))
	defer hush()
	var reporting, workers sync.WaitGroup
	reporting.Go(func() { r.reporter.run(speaking) })
	for _, report := range left {
		r.reporter.add(pending{report: report, journaled: true, over: r.place()})
	}
	for range r.Concurrency {
		workers.Go(func() {
			for a := range r.queue {
				r.carry(a)
			}
		})
	}
	r.claim()
	close(r.queue)
	workers.Wait()
	r.reporter.close()
	last := time.AfterFunc(reportLimit, hush)
	defer last.Stop()
	reporting.Wait()
	r.leases.Wait()
	select {
	case err := <-r.broken:
		return err
	default:
		return nil
	}
}

// place takes a place in hand for a report of the last run, if there is one,
// and gives what frees it: reports that are never taken must not pile up from
// run to run.
func (r *run) place() (free func()) {
	select {
	case <-r.hand:
		return func() { r.hand <- struct{}{} }
	default:
		return func() {}
	}
}

// fail ends the run because of err.
func (r *run) fail(err error) {
	select {
	case r.broken <- err:
	default: // one reason is enough
	}
	r.stop()
}

// claim keeps the hand full until nothing more is to be begun.
func (r *run) claim() {
	rest := firstPause
	connected, away := false, outage{}
	for places := r.places(0); places > 0; places = r.places(places) {
		asked, wait := time.Now(), claimWait
		if !connected {
			wait = 0 // an answer at once tells that the service is there
		}
		tasks, err := r.Client.Claim(r.running, api.ClaimRequest{
			AppID: r.AppID, Queue: r.Queue, Limit: &places, LeaseSeconds: &r.lease, MarksSending: true, Wait: &wait,
		})
		for _, t := range tasks {
			r.queue <- r.take(t)
		}
		places -= len(tasks)
		if err == nil && !connected {
			connected = true
			r.logConnected(away.end())
		}
		switch {
		case err != nil && r.running.Err() == nil:
			connected = false
			if away.isNew(err) {
				r.Log.WarnContext(r.running, LogNotClaimed, "error", err)
			}
			sleep(r.running, rest)
			rest = min(2*rest, longestRest)
		case len(tasks) == 0:
			sleep(r.running, time.Until(asked.Add(firstPause)))
			rest = firstPause
		default:
			rest = firstPause
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

// places waits for a free place and gives how many there are, with those had
// before; 0 when nothing more is to be begun.
func (r *run) places(had int) int {
	if had == 0 {
		select {
		case <-r.hand:
			had++
		case <-r.running.Done():
		}
	}
	for r.running.Err() == nil {
		select {
		case <-r.hand:
			had++
		default:
			return had
		}
	}
	return 0
}
