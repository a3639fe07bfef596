package submit_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

func TestTaskOverQuotaIsRefusedWithRetryAfter(t *testing.T) {
	t.Parallel()
	s := cluster.ServeOn(t, sandbox.NewDatabase(t), func(c *settings.Config) { c.WaitingTasks = 5 })
	greedy, modest := s.NewCaller("greedy", "submitter"), s.NewCaller("modest", "submitter")
	const one, batch = "/api/v1/sms/send", "/api/v1/sms/send/batch"

	require.Equal(t, []int{200, 200, 200, 200, 200, 429, 429}, greedy.Post(batch, cluster.KeyedBatch(1, 7, "")).Codes(), "each item is accepted or refused separately")
	for range 3 {
		refused := greedy.Post(one, `{"phone_number":"13800138000","content":"hello"}`)
		require.Equal(t, []any{429, "quota_exceeded", "5"}, []any{refused.Status, refused.Body["error"], refused.Header.Get("Retry-After")}, refused.Text)
		require.Contains(t, refused.Body["message"], "and may have 5: tasks are accepted again when some of these are finished")
		require.Equal(t, 429, greedy.Post(cluster.SubscribePath+"send", cluster.Booking(1, "")).Status, "subscribe messages are tasks too")
		require.Equal(t, 429, greedy.Post(cluster.SubscribePath+"record", cluster.Recording(1, "")).Status)
		require.Equal(t, []int{200, 200, 200, 200, 200, 429}, greedy.Post(batch, cluster.KeyedBatch(1, 6, "")).Codes(), "a replay is not refused")
	}
	require.Equal(t, []int{422, 429}, greedy.Post(batch, cluster.KeyedBatch(5, 6, `,"source":"other"`)).Codes())
	require.Equal(t, []int{200, 200, 200}, modest.Post(batch, cluster.KeyedBatch(1, 3, "")).Codes(), "another caller has its own quota")
	modest.Subscribe(cluster.Booking(1, ""))
	modest.Subscribe(cluster.Booking(1, "")) // a repeat

	at := s.CallerPath("modest")
	require.EqualValues(t, 4, s.Do("PUT", at, `{"max_waiting_tasks":4}`).Data("max_waiting_tasks"))
	require.Equal(t, 429, modest.Post(one, `{"phone_number":"13800138000","content":"hello"}`).Status, "a caller may have a limit of its own")
	require.Nil(t, s.Do("PUT", at, `{"max_waiting_tasks":0}`).Data("max_waiting_tasks"), "0 = the limit of the settings applies")
	require.Equal(t, []string{"max_waiting_tasks", "best_priority"}, s.Do("PUT", at, `{"max_waiting_tasks":-1,"best_priority":6}`).Fields())
}

// A client that repeats a whole batch gets more of its tasks accepted when some are finished.
func TestReplaysUseNoQuota(t *testing.T) {
	t.Parallel()
	s := cluster.ServeOn(t, sandbox.NewDatabase(t), func(c *settings.Config) { c.WaitingTasks = 3 })
	shop := s.NewCaller("shop", "submitter")
	const batch = "/api/v1/sms/send/batch"
	require.Equal(t, []int{200, 200, 200, 429, 429, 429, 429}, shop.Post(batch, cluster.KeyedBatch(1, 7, "")).Codes())
	for range 3 {
		shop.Post("/api/v1/sms/task/"+s.QueryText(`select id from task_live limit 1`)+"/cancel", "").RequireOK()
	}
	cluster.Eventually(t, func() bool {
		return slices.Equal(shop.Post(batch, cluster.KeyedBatch(1, 7, "")).Codes(), []int{200, 200, 200, 200, 200, 200, 429})
	}, "the next count finds room for three tasks")
}

func TestCallerPriorityIsLimited(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const one, batch = "/api/v1/sms/send", "/api/v1/sms/send/batch"
	greedy, modest := s.NewCallerWith("greedy", `"roles":["submitter"]`), s.NewCaller("modest", "submitter")
	at := s.CallerPath("greedy")
	require.EqualValues(t, 0, s.Get(at).Data("best_priority"), "a new caller may use any priority")
	require.Equal(t, []int{200}, greedy.Post(batch, cluster.KeyedBatch(1, 1, `,"priority":0`)).Codes())
	require.EqualValues(t, 4, s.Do("PUT", at, `{"best_priority":4}`).Data("best_priority"))
	require.EqualValues(t, 4, s.Do("PUT", at, `{"max_waiting_tasks":9}`).Data("best_priority"), "a missing field is not changed")

	refused := greedy.Post(one, `{"phone_number":"13800138000","content":"hello","priority":3}`)
	require.Equal(t, []any{403, "forbidden"}, []any{refused.Status, refused.Body["error"]}, refused.Text)
	require.Equal(t, []string{"priority"}, refused.Fields())
	require.Contains(t, refused.Text, "must be between 4 and 9")
	mixed := strings.Replace(cluster.KeyedBatch(2, 4, `,"priority":4`), `"priority":4`, `"priority":0`, 1)
	require.Equal(t, []int{403, 200, 200}, greedy.Post(batch, mixed).Codes(), "only the first item is refused")
	require.Equal(t, []int{200, 200}, greedy.Post(batch, cluster.KeyedBatch(5, 6, "")).Codes(), "the default priority is 5")
	require.Equal(t, []int{200}, greedy.Post(batch, cluster.KeyedBatch(1, 1, `,"priority":0`)).Codes(), "a replay is not refused")
	require.Equal(t, []int{200}, modest.Post(batch, cluster.KeyedBatch(1, 1, `,"priority":0`)).Codes(), "another caller is not limited")
	require.Equal(t, 1, s.Count(`select count(*) from task_live where priority < 4 and caller_id = (select id from callers where name = 'greedy')`))

	s.Do("PUT", at, `{"queues":["other"]}`).RequireOK()
	require.Equal(t, []int{200, 403}, greedy.Post(batch, cluster.KeyedBatch(6, 7, "")).Codes(), "a replay is accepted even after the caller lost the queue")

	limited := s.NewCallerWith("limited", `"roles":["admin","submitter"],"queues":["bulk"],"best_priority":3,"max_waiting_tasks":100`)
	wider := limited.Post("/api/v1/admin/callers", `{"name":"limited.wider","roles":["submitter"],"queues":["bulk"],"best_priority":2,"max_waiting_tasks":101}`)
	require.Equal(t, 403, wider.Status, wider.Text)
	require.Equal(t, []string{"max_waiting_tasks", "best_priority"}, wider.Fields())
	require.Equal(t, []string{"max_waiting_tasks", "best_priority"},
		limited.Post("/api/v1/admin/callers", `{"name":"limited.wider","roles":["submitter"],"queues":["bulk"]}`).Fields(), "missing fields mean no limit")
	narrow := limited.NewCallerWith("limited.narrow", `"roles":["submitter"],"queues":["bulk"],"best_priority":3,"max_waiting_tasks":100`)
	require.Equal(t, []int{200}, narrow.Post(batch, cluster.KeyedBatch(1, 1, `,"queue":"bulk","priority":3`)).Codes())
	require.Equal(t, []int{403}, narrow.Post(batch, cluster.KeyedBatch(2, 2, `,"queue":"bulk","priority":2`)).Codes())
}
