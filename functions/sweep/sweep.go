// Package sweep is the event function for work that is done outside of the calls of users: it makes scheduled tasks
// pending, retries, holds or fails zombies (tasks whose lease ended), expires tasks, ends pauses of queues, raises
// and clears alerts of queues, ends deliveries to deleted webhook endpoints, makes bulk changes of operators,
// and runs maintenance, which archives old rows.
//
//	POST /events/sweep
//
// Any number of sweeps may run at once. If a sweep fails, the next one does its work. Until then, claims find due tasks
// and zombies themselves.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/maintenance"
	"github.com/sendonce/sendonce/shared/task"
)

// Function does the work that is due.
var Function = fn.Event("sweep", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.EventHandler {
	s := &sweeper{env}
	return s.sweep
}

// Maximum number of rows in one transaction. bulkSize is smaller because each changed task also gets an audit entry.
const (
	batchSize = 500
	bulkSize  = 200
)

type sweeper struct{ env *fn.Env }

// sweep handles tasks and pauses that are due, in batches, for about sweepTime. Then it checks the alerts, ends deliveries, makes
// bulk changes and runs maintenance, also after an error of a batch, unless the database is unavailable or overloaded. Each step ends
// soon and continues in the next call, so that no step delays the others for long.
func (s *sweeper) sweep(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	rows, verdicts := 0, map[string]int{}
	var next time.Time
	var sweepErr error
	for until := time.Now().Add(sweepTime); ; {
		swept, err := s.env.Tasks.Sweep(ctx, batchSize)
		for queue, n := range swept.Pending {
			s.env.WakeClaims(queue, n)
		}
		if task.CodeOf(err) == task.CodeServerBusy { // the other steps would fail too
			return err
		}
		if sweepErr = err; err != nil {
			break
		}
		for verdict, n := range swept.Verdicts {
			verdicts[string(verdict)] += n
		}
		next = swept.Next
		rows += swept.Rows
		if !swept.More {
			break
		}
		if time.Now().After(until) {
			s.env.WakeAgainAt(bus.WakeSweep, time.Now())
			break
		}
	}
	c.Log("due", rows, "verdicts", verdicts)
	// Each sweep schedules the next one: a process that claims, submits or pauses may die before it schedules a sweep.
	s.env.WakeAgainAt(bus.WakeSweep, fn.NotBefore(next, time.Second))
	checkAgain, alertErr := s.env.Alerts.Check(ctx)
	if checkAgain {
		s.env.RescheduleAlertCheck()
	}
	endErr := errors.Join(s.endUndeliverable(ctx), s.changeInBulk(ctx, c))
	archived, more, err := s.env.Maintenance.Run(ctx)
	s.logArchived(c, archived)
	if more {
		s.env.WakeSweepAt(time.Now().Add(time.Second))
	}
	return errors.Join(sweepErr, alertErr, endErr, err)
}

const (
	sweepTime = 5 * time.Second
	stepTime  = 500 * time.Millisecond // for each of endUndeliverable and changeInBulk
)

// endUndeliverable ends deliveries to deleted endpoints. If stepTime does not suffice for all, it schedules another call.
func (s *sweeper) endUndeliverable(ctx context.Context) error {
	for until := time.Now().Add(stepTime); ; {
		more, err := s.env.Webhooks.EndUndeliverable(ctx)
		if err != nil || !more {
			return err
		}
		if time.Now().After(until) {
			s.env.WakeSweepAt(time.Now().Add(time.Second))
			return nil
		}
	}
}

// changeInBulk makes a part of the bulk changes of operators, and schedules a call for the rest. A bulk change that fails
// does not stop the other bulk changes; changeInBulk returns the first error.
func (s *sweeper) changeInBulk(ctx context.Context, c *fn.Call) (firstErr error) {
	changed := 0
	for until := time.Now().Add(stepTime); ; {
		ran, err := s.env.Tasks.RunBulk(ctx, bulkSize)
		for queue, n := range ran.Pending {
			s.env.WakeClaims(queue, n)
		}
		firstErr = cmp.Or(firstErr, err)
		changed += ran.Changed
		if ran.More && time.Now().Before(until) {
			continue
		}
		switch {
		case ran.More:
			s.env.WakeAgainAt(bus.WakeSweep, time.Now())
		case !ran.Next.IsZero():
			s.env.WakeAgainAt(bus.WakeSweep, fn.NotBefore(ran.Next, time.Second))
		}
		if changed > 0 {
			c.Log("bulk_changed", changed)
			s.env.WakeSweepAt(time.Now().Add(time.Second)) // tasks that are pending again may expire soon
		}
		return firstErr
	}
}

// maxLoggedRows limits the log lines about rows that cannot be archived.
const maxLoggedRows = 10

// logArchived logs and counts the archived rows, and logs the first rows that cannot be archived.
func (s *sweeper) logArchived(c *fn.Call, a maintenance.Archived) {
	metrics := s.env.Metrics().Archive
	if len(a.Rows) > 0 {
		c.Log("archived", a.Rows)
	}
	for table, n := range a.Rows {
		metrics.Rows.Add(n, table)
	}
	for i, row := range a.Failed {
		metrics.Failed.Inc(row.Table)
		if i < maxLoggedRows {
			s.env.Log.Warn("a row cannot be archived and stays in its table", "table", row.Table, "key", row.Key, "cause", row.Err.Error())
		}
	}
}
