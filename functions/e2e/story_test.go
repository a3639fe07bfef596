package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestAMessageGoesFromSubmitThroughAClaimToItsFinalState(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		sent := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"您的验证码是123456","source":"system_a"}`)
		require.Equal(t, 200, sent.status, sent.text)
		id := sent.data("task_id").(string)
		require.Equal(t, "success", sent.body["message"])
		require.EqualValues(t, 0, sent.data("status"))
		require.Equal(t, "您的验证码是123456", sent.data("final_content"))
		require.Equal(t, "UCS-2", sent.data("encoding"))
		require.EqualValues(t, 1, sent.data("segments"))
		require.Equal(t, "/api/v1/sms/task/"+id, sent.header.Get("Location"))

		claimed := s.get("/api/v1/sms/tasks/pending?limit=10&app_id=sms_app_001").list()
		require.Len(t, claimed, 1)
		require.Equal(t, id, claimed[0]["task_id"])
		require.Equal(t, "13800138000", claimed[0]["phone_number"])
		require.Equal(t, "您的验证码是123456", claimed[0]["content"])
		require.EqualValues(t, 0, claimed[0]["retry_count"])
		require.NotEmpty(t, claimed[0]["lease_until"])
		require.Empty(t, s.post("/api/v1/sms/tasks/pending", `{"app_id":"other"}`).list())
		require.Equal(t, "processing", s.get("/api/v1/sms/task/"+id).data("state"))

		report := fmt.Sprintf(`{"task_id":%q,"app_id":"sms_app_001","status":2,"error_message":"","should_retry":false,"claim_id":%v}`, id, claimed[0]["claim_id"])
		require.Equal(t, 200, s.post("/api/v1/sms/report", report).status)
		again := s.post("/api/v1/sms/report", report)
		require.Equal(t, 200, again.status)
		require.Equal(t, true, again.data("already"))

		got := s.get("/api/v1/sms/task/" + id)
		require.EqualValues(t, 2, got.data("status"))
		require.Equal(t, "succeeded", got.data("state"))
		require.True(t, strings.HasSuffix(got.data("sent_at").(string), "Z"), "times are UTC")
	})
}

func TestTheSameKeyGivesTheSameAnswerAndAnotherBodyIsRefused(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		const body = `{"phone_number":"13800138000","content":"hi","idempotency_key":"order-1"}`
		first := s.post("/api/v1/sms/send", body)
		again := s.post("/api/v1/sms/send", `{ "content":"hi", "idempotency_key":"order-1", "phone_number":"13800138000", "source":null }`)
		require.Equal(t, 200, again.status, again.text)
		require.Equal(t, first.data("task_id"), again.data("task_id"))
		require.Empty(t, first.header.Get("Idempotency-Replayed"))
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))

		byHeader := s.do("POST", "/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`, "Idempotency-Key", "order-1")
		require.Equal(t, first.data("task_id"), byHeader.data("task_id"), "header and body are one key")
		other := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"ho","idempotency_key":"order-1"}`)
		require.Equal(t, 422, other.status)
		require.Equal(t, "idempotency_key_reused", other.body["error"])
		require.Equal(t, first.data("task_id"), s.get("/api/v1/sms/by-key/order-1").data("task_id"))
		require.Equal(t, 404, s.get("/api/v1/sms/by-key/order-2").status)
		require.Equal(t, 400, s.get("/api/v1/sms/by-key/order%202").status)
		require.Len(t, s.get("/api/v1/sms/tasks/pending?app_id=a").list(), 1)
	})
}

func TestABatchAnswersEachItemInOrder(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		got := s.post("/api/v1/sms/send/batch", `{"items":[
			{"phone_number":"13800138000","content":"one","idempotency_key":"k"},
			{"phone_number":"abc","content":""},
			{"phone_number":"13800138000","content":"one","idempotency_key":"k"},
			{"phone_number":"13800138000","content":"two","idempotency_key":"k"},
			"not an object",
			{"phone_number":"13800138001","content":"three"}]}`)
		require.Equal(t, 200, got.status, got.text)
		items := got.data("items").([]any)
		require.Len(t, items, 6)
		codes := make([]any, len(items))
		for i, item := range items {
			codes[i] = item.(map[string]any)["code"]
		}
		require.Equal(t, []any{200.0, 400.0, 200.0, 422.0, 400.0, 200.0}, codes, got.text)
		require.Equal(t, true, items[2].(map[string]any)["replayed"])
		require.Len(t, s.get("/api/v1/sms/tasks/pending?app_id=a").list(), 2)
		require.Equal(t, 400, s.do("POST", "/api/v1/sms/send/batch", `{"items":[{}]}`, "Idempotency-Key", "k").status)
		require.Equal(t, 400, s.post("/api/v1/sms/send/batch", `{"items":[]}`).status)
	})
}

func TestATaskIsCancelledUntilItIsClaimed(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		free := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","send_at":"2099-01-01T00:00:00+08:00","idempotency_key":"far"}`)
		require.Equal(t, 400, free.status, "at most a year ahead")
		later := time.Now().Add(time.Hour).In(time.FixedZone("", 8*3600)).Format(time.RFC3339)
		free = s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","send_at":"`+later+`"}`)
		require.Equal(t, "scheduled", free.data("state"), free.text)
		cancelled := s.post("/api/v1/sms/task/"+free.data("task_id").(string)+"/cancel", "")
		require.Equal(t, 200, cancelled.status, cancelled.text)
		require.Equal(t, "cancelled", cancelled.data("reason"))

		taken := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).data("task_id").(string)
		s.get("/api/v1/sms/tasks/pending?app_id=a")
		refused := s.post("/api/v1/sms/task/"+taken+"/cancel", "")
		require.Equal(t, 409, refused.status)
	})
}

func TestAWaitingClaimAsksTheDatabaseNothing(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		empty := s.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=1")
		before := s.lastStatement()
		got := <-empty
		require.Equal(t, 200, got.status)
		require.Empty(t, got.list())
		require.Equal(t, before, s.lastStatement())
	})
}

func TestAWaitingClaimWakesWithATask(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		woken := s.waiting("/api/v1/sms/tasks/pending?app_id=a&wait=30")
		id := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).data("task_id")
		select {
		case got := <-woken:
			require.Len(t, got.list(), 1)
			require.Equal(t, id, got.list()[0]["task_id"])
		case <-time.After(20 * time.Second):
			t.Fatal("the waiting claim slept through the task")
		}
	})
}

func TestAClaimWhoseAppLeftGivesItsTasksBack(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	proxy := sandbox.NewProxy(t, url)
	all, arrived, left := handler(t, proxy.URL()), make(chan struct{}), make(chan struct{})
	s := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("app_id") == "leaver" {
			context.AfterFunc(r.Context(), func() { close(left) })
			close(arrived)
		}
		all.ServeHTTP(w, r)
	})).connect(url)
	s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)

	proxy.Stall()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+"/api/v1/sms/tasks/pending?app_id=leaver", nil)
	require.NoError(t, err)
	req.SetBasicAuth("admin", "secret")
	gone := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		gone <- err
	}()
	<-arrived
	leave()
	require.Error(t, <-gone)
	<-left
	proxy.Resume()
	require.Eventually(t, func() bool {
		return s.count(`select count(*) from report_logs where app_id = 'leaver' and verdict = 'applied'`) == 1
	}, waitLimit, time.Millisecond)
	fresh := s.get("/api/v1/sms/tasks/pending?app_id=stayer").list()
	require.Len(t, fresh, 1)
	require.EqualValues(t, 0, fresh[0]["retry_count"], "it cost no retry")
}

func TestAnExpiredLeaseIsRecoveredAndTheLateReportRefused(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		id := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).data("task_id").(string)
		old := s.get("/api/v1/sms/tasks/pending?app_id=a&lease_seconds=10").list()[0]
		longer := s.post("/api/v1/sms/tasks/"+id+"/extend", fmt.Sprintf(`{"app_id":"a","claim_id":%v,"lease_seconds":60,"sending":true}`, old["claim_id"]))
		require.Equal(t, 200, longer.status, longer.text)
		require.Greater(t, longer.data("lease_until").(string), old["lease_until"].(string))
		s.exec(`update task_live set due_at = now() - interval '1 minute'`)

		swept := s.do("POST", "/events/sweep", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "test", "Ce-Type", "sendonce.tick.sweep.v1")
		require.Equal(t, http.StatusNoContent, swept.status, swept.text)
		fresh := s.get("/api/v1/sms/tasks/pending?app_id=b").list()
		require.Len(t, fresh, 1)
		require.EqualValues(t, 1, fresh[0]["retry_count"])
		zombie := s.get("/api/v1/sms/task/" + id)
		require.Equal(t, "处理超时，自动重试", zombie.data("result"))
		require.Equal(t, "timeout_retry", zombie.data("error_code"))
		late := s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"a","status":2,"claim_id":%v}`, id, old["claim_id"]))
		require.Equal(t, 409, late.status)
		require.Equal(t, "stale_claim", late.body["error"])
		require.Equal(t, 409, s.post("/api/v1/sms/tasks/"+id+"/extend", `{"app_id":"a"}`).status)
		require.Equal(t, 200, s.post("/api/v1/sms/report", fmt.Sprintf(`{"task_id":%q,"app_id":"b","status":3,"error_code":"E7","error_message":"no signal"}`, id)).status)
		got := s.get("/api/v1/sms/task/" + id)
		require.Equal(t, "rejected", got.data("reason"))
		require.Equal(t, "E7", got.data("error_code"))
		require.Equal(t, "no signal", got.data("result"))
	})
}

func TestABatchOfReportsAnswersEachItem(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		for range 3 {
			s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","on_unknown":"hold"}`)
		}
		c := s.get("/api/v1/sms/tasks/pending?app_id=a").list()
		got := s.post("/api/v1/sms/report/batch", fmt.Sprintf(`{"app_id":"a","items":[
			{"task_id":%q,"status":2}, {"task_id":%q,"outcome":"unknown"}, {"task_id":%q,"outcome":"released","retry_after_seconds":60},
			{"task_id":"nope","status":2}, {"task_id":%q,"status":7}, {"task_id":%q,"status":3}]}`,
			c[0]["task_id"], c[1]["task_id"], c[2]["task_id"], c[0]["task_id"], c[0]["task_id"]))
		require.Equal(t, 200, got.status, got.text)
		var seen []string
		for _, item := range got.data("items").([]any) {
			m := item.(map[string]any)
			state := ""
			if d, ok := m["data"].(map[string]any); ok {
				state = d["state"].(string)
			}
			seen = append(seen, fmt.Sprint(m["code"], " ", state))
		}
		require.Equal(t, []string{"200 succeeded", "200 held", "200 scheduled", "404 ", "400 ", "409 "}, seen, got.text)
	})
}

func TestACallerSeesAndTouchesOnlyWhatIsItsOwn(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T, h host) {
		s := h.serve(t)
		ann, bob := s.caller("ann", "submitter"), s.caller("bob", "submitter")
		phone := s.caller("phone", "sender", "vip")
		id := ann.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`).data("task_id").(string)
		require.Equal(t, 200, ann.get("/api/v1/sms/task/"+id).status)
		require.Equal(t, 404, bob.get("/api/v1/sms/task/"+id).status)
		require.Equal(t, 404, bob.post("/api/v1/sms/task/"+id+"/cancel", "").status)
		require.Equal(t, 404, bob.get("/api/v1/sms/by-key/k").status)
		require.NotEqual(t, id, bob.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`).data("task_id"))
		require.Equal(t, 403, ann.get("/api/v1/sms/tasks/pending?app_id=a").status)
		require.Equal(t, 403, phone.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).status)
		require.Equal(t, 403, phone.get("/api/v1/sms/tasks/pending?app_id=a").status, "not a queue of this sender")
		require.Equal(t, 200, phone.get("/api/v1/sms/tasks/pending?app_id=a&queue=vip").status)
		require.Equal(t, 403, ann.do("POST", "/events/sweep", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "t", "Ce-Type", "x").status)
		require.Equal(t, 401, (&server{t: t, url: s.url, user: "ann", password: "wrong"}).get("/api/v1/sms/task/"+id).status)
		require.Equal(t, 200, s.get("/api/v1/sms/task/"+id).status, "an admin sees all")
	})
}
