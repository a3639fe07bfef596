// Package sweep is the event function that lets happen what time brings:
// scheduled tasks become pending, zombies are recovered (seed 001 sections
// 6.3.3 and 8.4), what is past its time expires, paused queues go on, alerts are
// raised and cleared (seed 000, the last section), and what is old is archived.
//
//	POST /events/sweep
//
// Any number may run at once and any may be lost: claims promote what is due
// for themselves.
package sweep

import (
	"context"
	"errors"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
)

// Function is this package's line in the catalogue.
var Function = fn.Event("sweep", New)

// New runs once per cold start and does not touch the network.
func New(env *fn.Env, _ struct{}) fn.EventHandler {
	s := &sweeper{db: env.DB(), env: env}
	return s.sweep
}

// batchRows bounds one transaction.
const batchRows = 500

type sweeper struct {
	db  *store.DB
	env *fn.Env
}

// sweep settles everything that is due, batch by batch, then looks at the queues
// and keeps house, for a moment at a time: what is due meanwhile must not wait for
// that.
// When the call's time ends first, the next tick goes on.
func (s *sweeper) sweep(ctx context.Context, c *fn.Call, _ cloudevents.Event) error {
	rows, verdicts := 0, map[string]int{}
	var next time.Time
	for {
		swept, err := s.db.Sweep(ctx, batchRows)
		for queue, n := range swept.Pending {
			s.env.WakeClaims(queue, n)
		}
		if err != nil {
			return err
		}
		for verdict, n := range swept.Verdicts {
			verdicts[string(verdict)] += n
		}
		next = swept.Next
		if rows += swept.Rows; !swept.More {
			break
		}
	}
	c.Log("due", rows, "verdicts", verdicts)
	s.env.WakeAgainAt(bus.WakeSweep, fn.NotBefore(next, time.Second)) // who claimed, submitted or paused may have died before it said so
	again, watchErr := s.db.CheckAlerts(ctx)
	if again {
		s.env.RescheduleAlertCheck()
	}
	archived, more, err := s.db.RunMaintenance(ctx)
	s.archived(c, archived)
	if more {
		s.env.WakeSweepAt(time.Now().Add(time.Second))
	}
	return errors.Join(watchErr, err)
}

// maxNamed bounds the log lines about rows that cannot be archived.
const maxNamed = 10

// archived logs and counts what left the main tables, and names the first rows
// that could not.
func (s *sweeper) archived(c *fn.Call, a store.Archived) {
	metrics := s.env.Metrics().Archive
	if len(a.Rows) > 0 {
		c.Log("archived", a.Rows)
	}
	for table, n := range a.Rows {
		metrics.Rows.Add(n, table)
	}
	for i, row := range a.Failed {
		metrics.Failed.Inc(row.Table)
		if i >= maxNamed {
			continue
		}
		s.env.Log.Warn("a row cannot be archived and stays in its table", "table", row.Table, "key", row.Key, "cause", row.Err.Error())
	}
}
