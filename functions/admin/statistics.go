package admin

import (
	"context"
	"math"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
)

func (d *desk) statistics(ctx context.Context, _ *fn.Call, _ nothing) (any, error) {
	s, err := d.db.Statistics(ctx)
	answer := api.StatisticsResponse{
		LiveCounts: liveCounts(s.Live), SucceededTasks: s.Succeeded, FailedTasks: s.Failed,
		Queues: make([]api.QueueStatistics, len(s.Queues)),
	}
	for i, q := range s.Queues {
		answer.Queues[i] = api.QueueStatistics{Queue: q.Queue, LiveCounts: liveCounts(q.LiveCounts)}
	}
	return answer, err
}

func liveCounts(l store.LiveCounts) api.LiveCounts {
	return api.LiveCounts{
		ScheduledTasks: l.Scheduled, PendingNewTasks: l.PendingNew, PendingRetryTasks: l.PendingRetry,
		ProcessingTasks: l.Processing, HeldTasks: l.Held, OldestPendingSeconds: seconds(l.OldestPending),
	}
}

// seconds is a duration of the wire, to the millisecond.
func seconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := math.Round(d.Seconds()*1000) / 1000
	return &s
}
