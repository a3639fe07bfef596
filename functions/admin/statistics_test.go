package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

func TestStatistics(t *testing.T) {
	t.Parallel()
	o := startServer(t)
	require.JSONEq(t, `{"pending_new_tasks":0,"pending_retry_tasks":0,"processing_tasks":0,"failed_tasks":0,"scheduled_tasks":0,
		"held_tasks":0,"succeeded_tasks":0,"oldest_pending_seconds":null,"queues":[],
		"subscribe":{"pending_new_tasks":0,"pending_retry_tasks":0,"processing_tasks":0,"failed_tasks":0,"scheduled_tasks":0,
		"held_tasks":0,"succeeded_tasks":0,"oldest_pending_seconds":null,"queues":[]}}`, string(o.call("GET", "statistics", "").Data))
	for range 4 {
		o.submit(nil)
	}
	o.claimAndReport(task.SentOK)
	o.claimAndReport(task.SentFailed)
	o.claim()
	s := mustCall[api.StatisticsResponse](o, "GET", "statistics", "")
	require.Equal(t, []int64{1, 1, 1, 1}, []int64{s.SucceededTasks, s.FailedTasks, s.ProcessingTasks, s.PendingNewTasks})
	require.NotNil(t, s.OldestPendingSeconds)
	require.Equal(t, "default", s.Queues[0].Queue)
	require.Equal(t, int64(1), s.Queues[0].PendingNewTasks)
}
