package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// keyedBatch is a batch of SMS with the keys first to last, each with the rest of its item.
func keyedBatch(first, last int, rest string) string {
	var items []string
	for key := first; key <= last; key++ {
		items = append(items, fmt.Sprintf(`{"phone_number":"13800138000","content":"hello","idempotency_key":"k-%d"%s}`, key, rest))
	}
	return `{"items":[` + strings.Join(items, ",") + `]}`
}

// codesOf are the status of each item of a batch.
func codesOf(r reply) (codes []int) {
	for _, item := range r.data("items").([]any) {
		codes = append(codes, int(item.(map[string]any)["code"].(float64)))
	}
	return codes
}

func TestACallerBeyondItsQuotaOfTasksIsToldToWait(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	quota := func(c *fn.Config) { c.WaitingTasks = 5 }
	_, h := environment(t, url, quota)
	s := serveHandler(t, h).connect(url)
	greedy, modest := s.caller("greedy", "submitter"), s.caller("modest", "submitter")
	const one, batch = "/api/v1/sms/send", "/api/v1/sms/send/batch"

	require.Equal(t, []int{200, 200, 200, 200, 200, 429, 429}, codesOf(greedy.post(batch, keyedBatch(1, 7, ""))), "each item is for itself")
	for range 3 {
		refused := greedy.post(one, `{"phone_number":"13800138000","content":"hello"}`)
		require.Equal(t, []any{429, "quota_exceeded", "5"}, []any{refused.status, refused.body["error"], refused.header.Get("Retry-After")}, refused.text)
		require.Contains(t, refused.body["message"], "and may have 5: tasks are accepted again when some of these are finished")
		require.Equal(t, 429, greedy.post(subscriptions+"send", booking(1, "")).status, "subscribe messages are tasks too")
		require.Equal(t, 429, greedy.post(subscriptions+"record", recording(1, "")).status)
		require.Equal(t, []int{200, 200, 200, 200, 200, 429}, codesOf(greedy.post(batch, keyedBatch(1, 6, ""))), "a replay gets its answer")
	}
	require.Equal(t, []int{422, 429}, codesOf(greedy.post(batch, keyedBatch(5, 6, `,"source":"other"`))))
	require.Equal(t, []int{200, 200, 200}, codesOf(modest.post(batch, keyedBatch(1, 3, ""))), "another caller goes on")
	require.Equal(t, 200, modest.post(subscriptions+"send", booking(1, "")).status)
	require.Equal(t, 200, modest.post(subscriptions+"send", booking(1, "")).status, "a repeat of it too")
	for range 6 {
		require.Equal(t, 200, s.post(one, `{"phone_number":"13800138000","content":"hello"}`).status, "the built-in admin has no quota")
	}
	require.Equal(t, 5, s.count(`select count(*) from task_live where caller_id = (select id from callers where name = 'greedy')`))

	_, h = environment(t, url, quota)
	again := *greedy
	again.url = serveHandler(t, h).url
	require.Eventually(t, func() bool { return again.post(one, `{"phone_number":"13800138000","content":"hello"}`).status == 429 },
		waitLimit, 10*time.Millisecond, "another process, and one that begins anew, counts the same")

	at := fmt.Sprintf("/api/v1/admin/callers/%d", s.count(`select id from callers where name = 'modest'`))
	require.EqualValues(t, 4, s.do("PUT", at, `{"max_waiting_tasks":4}`).data("max_waiting_tasks"))
	require.Equal(t, 429, modest.post(one, `{"phone_number":"13800138000","content":"hello"}`).status, "a caller may have a limit of its own")
	require.Nil(t, s.do("PUT", at, `{"max_waiting_tasks":0}`).data("max_waiting_tasks"), "what the settings say")
	require.Equal(t, []string{"max_waiting_tasks", "best_priority"}, s.do("PUT", at, `{"max_waiting_tasks":-1,"best_priority":6}`).fields())

	for key := range 5 {
		id := greedy.get(fmt.Sprint("/api/v1/sms/by-key/k-", key+1)).data("task_id")
		require.Equal(t, 200, greedy.post(fmt.Sprint("/api/v1/sms/task/", id, "/cancel"), "").status)
	}
	require.Eventually(t, func() bool { return greedy.post(one, `{"phone_number":"13800138000","content":"hello"}`).status == 200 },
		waitLimit, 10*time.Millisecond, "there is room again")
}

func TestACallerGoesNoFurtherForwardThanItWasGranted(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const one, batch = "/api/v1/sms/send", "/api/v1/sms/send/batch"
	greedy, modest := newCaller(s, "greedy", `"roles":["submitter"]`), s.caller("modest", "submitter")
	at := fmt.Sprintf("/api/v1/admin/callers/%d", s.count(`select id from callers where name = 'greedy'`))
	require.EqualValues(t, 0, s.get(at).data("best_priority"), "any, unless an admin says otherwise")
	require.Equal(t, []int{200}, codesOf(greedy.post(batch, keyedBatch(1, 1, `,"priority":0`))))
	require.EqualValues(t, 4, s.do("PUT", at, `{"best_priority":4}`).data("best_priority"))
	require.EqualValues(t, 4, s.do("PUT", at, `{"max_waiting_tasks":9}`).data("best_priority"), "what is left out stays")

	refused := greedy.post(one, `{"phone_number":"13800138000","content":"hello","priority":3}`)
	require.Equal(t, []any{403, "forbidden"}, []any{refused.status, refused.body["error"]}, refused.text)
	require.Equal(t, []string{"priority"}, refused.fields())
	require.Contains(t, refused.text, "must be between 4 and 9")
	mixed := strings.Replace(keyedBatch(2, 4, `,"priority":4`), `"priority":4`, `"priority":0`, 1)
	require.Equal(t, []int{403, 200, 200}, codesOf(greedy.post(batch, mixed)), "one item fails alone")
	require.Equal(t, []int{200, 200}, codesOf(greedy.post(batch, keyedBatch(5, 6, ""))), "none given is 5")
	require.Equal(t, []int{200}, codesOf(greedy.post(batch, keyedBatch(1, 1, `,"priority":0`))), "a replay gets its answer")
	require.Equal(t, []int{200}, codesOf(modest.post(batch, keyedBatch(1, 1, `,"priority":0`))), "another caller goes on")
	require.Equal(t, 1, s.count(`select count(*) from task_live where priority < 4 and caller_id = (select id from callers where name = 'greedy')`))

	limited := newCaller(s, "limited", `"roles":["admin","submitter"],"queues":["bulk"],"best_priority":3,"max_waiting_tasks":100`)
	made := limited.post("/api/v1/admin/callers", `{"name":"limited.wider","roles":["submitter"],"queues":["bulk"],"best_priority":2,"max_waiting_tasks":101}`)
	require.Equal(t, 403, made.status, made.text)
	require.Equal(t, []string{"max_waiting_tasks", "best_priority"}, made.fields())
	require.Equal(t, []string{"max_waiting_tasks", "best_priority"},
		limited.post("/api/v1/admin/callers", `{"name":"limited.wider","roles":["submitter"],"queues":["bulk"]}`).fields(), "none given is all")
	narrow := newCaller(limited, "limited.narrow", `"roles":["submitter"],"queues":["bulk"],"best_priority":3,"max_waiting_tasks":100`)
	require.Equal(t, []int{200}, codesOf(narrow.post(batch, keyedBatch(1, 1, `,"queue":"bulk","priority":3`))))
	require.Equal(t, []int{403}, codesOf(narrow.post(batch, keyedBatch(2, 2, `,"queue":"bulk","priority":2`))))
}
