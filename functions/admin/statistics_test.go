package admin_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/task"
)

func TestStatisticsCountTasksByState(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	require.JSONEq(t, `{"pending_new_tasks":0,"pending_retry_tasks":0,"processing_tasks":0,"failed_tasks":0,"scheduled_tasks":0,
		"held_tasks":0,"succeeded_tasks":0,"oldest_pending_seconds":null,"queues":[],
		"subscribe":{"pending_new_tasks":0,"pending_retry_tasks":0,"processing_tasks":0,"failed_tasks":0,"scheduled_tasks":0,
		"held_tasks":0,"succeeded_tasks":0,"oldest_pending_seconds":null,"queues":[]}}`, string(mustCall[json.RawMessage](s, "GET", "statistics", "")))
	for range 4 {
		s.submit(nil)
	}
	s.claimAndReport(task.SentOK)
	s.claimAndReport(task.SentFailed)
	s.claim()
	got := mustCall[api.StatisticsResponse](s, "GET", "statistics", "")
	require.Equal(t, []int64{1, 1, 1, 1}, []int64{got.SucceededTasks, got.FailedTasks, got.ProcessingTasks, got.PendingNewTasks})
	require.NotNil(t, got.OldestPendingSeconds)
	require.Equal(t, "default", got.Queues[0].Queue)
	require.Equal(t, int64(1), got.Queues[0].PendingNewTasks)
}
