package admin

import (
	"context"
	"math"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/tasks"
)

func (h *handlers) statistics(ctx context.Context, _ *fn.Call, _ struct{}) (any, error) {
	s, err := h.env.Tasks.Statistics(ctx)
	return api.StatisticsResponse{TaskStatistics: taskStatistics(s.SMS), Subscribe: taskStatistics(s.Subscribe)}, err
}

func taskStatistics(c tasks.Counts) api.TaskStatistics {
	response := api.TaskStatistics{
		LiveCounts: liveCounts(c.Live), SucceededTasks: c.Succeeded, FailedTasks: c.Failed, Queues: make([]api.QueueStatistics, len(c.Queues)),
		MoreQueues: c.HasMoreQueues,
	}
	for i, q := range c.Queues {
		response.Queues[i] = api.QueueStatistics{Queue: q.Queue, LiveCounts: liveCounts(q.LiveCounts)}
	}
	return response
}

func liveCounts(l tasks.LiveCounts) api.LiveCounts {
	return api.LiveCounts{
		ScheduledTasks: l.Scheduled, PendingNewTasks: l.PendingNew, PendingRetryTasks: l.PendingRetry,
		ProcessingTasks: l.Processing, HeldTasks: l.Held, OldestPendingSeconds: seconds(l.OldestPending),
	}
}

// seconds returns a duration in seconds, rounded to milliseconds.
func seconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := math.Round(d.Seconds()*1000) / 1000
	return &s
}
