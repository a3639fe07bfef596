package sender

import (
	"context"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	claimWaitSeconds = 20               // how long a claim waits for tasks
	finalReportTime  = 10 * time.Second // for reports after the last send
)

// do claims, sends and reports tasks until the run stops. unreported has the reports that the last run left in the
// journal. If an error of the journal stopped the run, do returns it.
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

// claim claims tasks for all free slots until the run stops.
func (r *run) claim() {
	pause := minPause
	connected, down := false, outage{}
	for slots := r.waitForSlots(0); slots > 0; slots = r.waitForSlots(slots) {
		started, wait := time.Now(), claimWaitSeconds
		if !connected {
			wait = 0 // the response comes at once, so LogConnected is logged at once
		}
		ctx, cancel := context.WithTimeout(r.running, callTimeout)
		tasks, err := r.Client.Claim(ctx, api.ClaimRequest{
			AppID: r.AppID, Queue: r.Queue, Limit: &slots, LeaseSeconds: &r.lease, MarksSending: true, Wait: &wait,
		})
		cancel()
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

func (r *run) logConnected(outageLasted time.Duration) {
	if outageLasted == 0 {
		r.Log.InfoContext(r.running, LogConnected)
		return
	}
	r.Log.InfoContext(r.running, LogConnected, "away", outageLasted.Round(time.Second).String())
}

// waitForSlots takes all free slots and returns their number plus held, the number of slots that the caller already has.
// It waits until the sum is at least 1. It returns 0 when the run stops.
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
