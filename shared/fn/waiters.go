package fn

import (
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/waiters"
)

// RegisterWaiter registers a long poll for tasks of the queue. The first RegisterWaiter of a process
// subscribes to the wake-ups of other processes. After a gap in this subscription, only the oldest poll
// of each queue is woken. One poll is enough, because an app that gets tasks claims again. If all polls
// were woken, a thousand of them might query at once.
func (e *Env) RegisterWaiter(queue string) *waiters.Waiter {
	e.subscribeQueues.Do(func() {
		e.bus.OnQueue(func(queue string, n int) { e.waiters.Notify(queue, n) }, e.waiters.NotifyOnePerQueue)
	})
	return e.waiters.Register(queue)
}

// WakeClaims wakes waiting claims for n tasks of the queue that became pending: claims of this
// process first, and those of other processes if tasks are left. If alerts of the backlog are on, it
// schedules their check. Call WakeClaims after the commit. It never blocks.
func (e *Env) WakeClaims(queue string, n int) {
	if e.alerts.Backlog.On() {
		e.scheduleAlertCheck()
	}
	if n -= e.waiters.Notify(queue, n); n > 0 {
		e.bus.Wake(bus.QueueSubject(queue), n)
	}
}
