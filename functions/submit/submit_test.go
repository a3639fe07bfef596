package submit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestIdempotencyKeyReplaysOrRefuses(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const body = `{"phone_number":"13800138000","content":"hi","idempotency_key":"order-1"}`
	first := s.Post("/api/v1/sms/send", body)
	again := s.Post("/api/v1/sms/send", `{ "content":"hi", "idempotency_key":"order-1", "phone_number":"13800138000", "source":null }`).RequireOK()
	require.Equal(t, first.Data("task_id"), again.Data("task_id"))
	require.Empty(t, first.Header.Get("Idempotency-Replayed"))
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))

	byHeader := s.Do("POST", "/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`, "Idempotency-Key", "order-1")
	require.Equal(t, first.Data("task_id"), byHeader.Data("task_id"), "the key may be in the header instead of the body")
	other := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"ho","idempotency_key":"order-1"}`)
	require.Equal(t, 422, other.Status)
	require.Equal(t, "idempotency_key_reused", other.Body["error"])
	require.Equal(t, first.Data("task_id"), s.Get("/api/v1/sms/by-key/order-1").Data("task_id"))
	require.Equal(t, 404, s.Get("/api/v1/sms/by-key/order-2").Status)
	require.Equal(t, 400, s.Get("/api/v1/sms/by-key/order%202").Status)
	require.Len(t, s.Get("/api/v1/sms/tasks/pending?app_id=a").List(), 1)
}

func TestSubmitReturnsTheTextAndItsSegments(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"code","template_content":"您的验证码是{code}"}`).RequireOK()
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"code=123456&more=1","use_template":true}`).RequireOK()
	require.Equal(t, "您的验证码是123456", sent.Data("final_content"))
	require.Equal(t, []any{"UCS-2", 1.0}, []any{sent.Data("encoding"), sent.Data("segments")})
	require.Equal(t, []any{"more"}, sent.Data("unused_params"))
	require.Equal(t, fmt.Sprint("/api/v1/sms/task/", sent.Data("task_id")), sent.Header.Get("Location"))
}

func TestTasksOfOtherCallersAreNotFound(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ann, bob := s.NewCaller("ann", "submitter"), s.NewCaller("bob", "submitter")
	const body = `{"phone_number":"13800138000","content":"hi","idempotency_key":"k"}`
	id := ann.Post("/api/v1/sms/send", body).RequireOK().Data("task_id").(string)
	ann.Get("/api/v1/sms/task/" + id).RequireOK()
	s.Get("/api/v1/sms/task/" + id).RequireOK() // an admin may read every task
	require.Equal(t, 404, bob.Get("/api/v1/sms/task/"+id).Status)
	require.Equal(t, 404, bob.Post("/api/v1/sms/task/"+id+"/cancel", "").Status)
	require.Equal(t, 404, bob.Get("/api/v1/sms/by-key/k").Status)
	require.NotEqual(t, id, bob.Post("/api/v1/sms/send", body).RequireOK().Data("task_id"))
}

func TestAnEmptyKeyInTheBodyIsRefused(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const body = `{"phone_number":"13800138000","content":"hi","idempotency_key":%s}`
	got := s.Post("/api/v1/sms/send/batch", `{"items":[`+fmt.Sprintf(body, `""`)+`,`+fmt.Sprintf(body, "null")+`]}`)
	require.Equal(t, []int{400, 200}, got.Codes(), "a null key counts as no key: %s", got.Text)
	require.Contains(t, got.Text, `"field":"idempotency_key"`)
	require.Equal(t, 400, s.Do("POST", "/api/v1/sms/send", fmt.Sprintf(body, `""`), "Idempotency-Key", "order-1").Status)
	require.Len(t, s.Get("/api/v1/sms/tasks/pending?app_id=a").List(), 1)
}

func TestBatchReturnsResultsInOrder(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	got := s.Post("/api/v1/sms/send/batch", `{"items":[
		{"phone_number":"13800138000","content":"one","idempotency_key":"k"},
		{"phone_number":"abc","content":""},
		{"phone_number":"13800138000","content":"one","idempotency_key":"k"},
		{"phone_number":"13800138000","content":"two","idempotency_key":"k"},
		"not an object",
		{"phone_number":"13800138001","content":"three"}]}`)
	require.Equal(t, []int{200, 400, 200, 422, 400, 200}, got.Codes(), got.Text)
	require.Equal(t, true, got.Items()[2]["replayed"])
	require.Len(t, s.Get("/api/v1/sms/tasks/pending?app_id=a").List(), 2)
	require.Equal(t, 400, s.Do("POST", "/api/v1/sms/send/batch", `{"items":[{}]}`, "Idempotency-Key", "k").Status)
	require.Equal(t, 400, s.Post("/api/v1/sms/send/batch", `{"items":[]}`).Status)
}

// If numbers with exponents were expanded, short metadata would become a very long text, in every event too.
func TestMetadataIsStoredAsSent(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	metadata := `{"b":1,"a":[` + strings.Repeat("1e300,", 678) + `1.50]}`
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","metadata":`+metadata+`}`).RequireOK()
	require.EqualValues(t, len(metadata), s.Count(`select octet_length(metadata::text) from tasks`))
	require.Contains(t, s.Get("/api/v1/sms/task/"+sent.Data("task_id").(string)).Text, `"metadata":`+metadata)
	longer := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","metadata":{"m":"`+strings.Repeat("x", 4096)+`"}}`)
	require.Equal(t, 400, longer.Status, longer.Text)
}

func TestCancelReturnsTheCancelledTask(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	later := time.Now().Add(time.Hour).In(time.FixedZone("", 8*3600)).Format(time.RFC3339)
	scheduled := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","send_at":"`+later+`"}`)
	require.Equal(t, "scheduled", scheduled.Data("state"), scheduled.Text)
	cancelled := s.Post("/api/v1/sms/task/"+scheduled.Data("task_id").(string)+"/cancel", "").RequireOK()
	require.Equal(t, []any{"failed", "cancelled"}, []any{cancelled.Data("state"), cancelled.Data("reason")})
}

// Each refused call returns a 4xx, which names all bad fields if there are any, and stores at most a row in receive_logs.
func TestRefusedCallsNameBadFieldsAndStoreNothing(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const send, report, pending = "/api/v1/sms/send", "/api/v1/sms/report", "/api/v1/sms/tasks/pending"
	sql := `'; drop table tasks; --`
	for _, c := range []struct {
		method, path, body string
		status             int
		fields             []string
	}{
		{"POST", send, ``, 400, []string{"body"}},
		{"POST", send, `{`, 400, []string{"body"}},
		{"POST", send, `[]`, 400, []string{"body"}},
		{"POST", send, `null`, 400, []string{"body"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x"} trailing`, 400, []string{"body"}},
		{"POST", send, `{}`, 400, []string{"phone_number"}},
		{"POST", send, `{"phone_number":"abc","content":"x"}`, 400, []string{"phone_number"}},
		{"POST", send, `{"phone_number":13800138000,"content":7,"use_template":"yes","priority":"high","nonsense":1}`, 400,
			[]string{"content", "nonsense", "phone_number", "priority", "use_template"}},
		{"POST", send, `{"phone_number":"1","phone_number":"13800138000","content":"x"}`, 400, []string{"phone_number"}},
		{"POST", send, `{"phone_number":"13800138000","content":"` + strings.Repeat("x", 201) + `"}`, 400, []string{"content"}},
		{"POST", send, `{"phone_number":"13800138000","content":"` + strings.Repeat("😀", 201) + `"}`, 400, []string{"content"}},
		{"POST", send, `{"phone_number":"13800138000","content":"   "}`, 400, []string{"content"}},
		{"POST", send, `{"phone_number":"13800138000","content":"a\u0000b"}`, 400, []string{"content"}},
		{"POST", send, `{"phone_number":"13800138000","content":"a\ud800b"}`, 400, []string{"content"}},
		{"POST", send, "{\"phone_number\":\"13800138000\",\"content\":\"a\xffb\"}", 400, []string{"content"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","source":"` + strings.Repeat("中", 51) + `"}`, 400, []string{"source"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","priority":9223372036854775808}`, 400, []string{"priority"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","priority":-1,"max_retries":11,"on_unknown":"maybe","queue":"a b","ttl_seconds":0}`, 400,
			[]string{"max_retries", "on_unknown", "priority", "queue", "ttl_seconds"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","send_at":"tomorrow"}`, 400, []string{"send_at"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","send_at":"2099-01-01T00:00:00+08:00","idempotency_key":"far"}`, 400, []string{"send_at"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","expires_at":"2001-01-01T00:00:00+14:00"}`, 400, []string{"expires_at"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","ttl_seconds":60,"expires_at":"2090-01-01T00:00:00Z"}`, 400, []string{"expires_at"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","idempotency_key":"a b"}`, 400, []string{"idempotency_key"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","idempotency_key":""}`, 400, []string{"idempotency_key"}},
		{"POST", send, `{"phone_number":"x","content":"x","idempotency_key":""}`, 400, []string{"idempotency_key", "phone_number"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","idempotency_key":"` + strings.Repeat("k", 256) + `"}`, 400, []string{"idempotency_key"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","callback_url":"javascript:alert(1)"}`, 400, []string{"callback_url"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","metadata":[1]}`, 400, []string{"metadata"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","metadata":{"a":1e999999}}`, 400, []string{"metadata"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","metadata":{"a":"\u0000"}}`, 400, []string{"metadata"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","metadata":{"a":0e-99999}}`, 400, []string{"metadata"}},
		{"POST", send, `{"phone_number":"13800138000","content":"x","metadata":{"a":[-0E2147483648]}}`, 400, []string{"metadata"}},
		{"POST", "/api/v1/sms/tasks/019a0000-0000-7000-8000-000000000000/extend", `{"app_id":"a","claim_id":9223372036854775807}`, 404, nil},
		{"POST", send, `{"phone_number":"13800138000","content":"a=1","use_template":true}`, 400, []string{"use_template"}},
		{"POST", send, `{"phone_number":"13800138000","params":{"a":null,"b":[1]},"content":"x"}`, 400, []string{"params", "params.a", "params.b"}},
		{"POST", send, `{"phone_number":"13800138000"}`, 404, nil},
		{"POST", send, fmt.Sprintf(`{"phone_number":%q,"content":"x","source":%q,"queue":%q,"on_unknown":%q,"template_name":%q}`, sql, sql, sql, sql, sql), 400,
			[]string{"on_unknown", "phone_number", "queue"}},
		{"POST", send, `{"phone_number":"13800138000","content":"` + strings.Repeat("x", 10<<20) + `"}`, 413, nil},
		{"POST", send + "/batch", `{"items":"x"}`, 400, []string{"items"}},
		{"GET", pending + "?limit=-1&app_id=a", ``, 400, []string{"limit"}},
		{"GET", pending + "?limit=1001&app_id=a", ``, 400, []string{"limit"}},
		{"GET", pending + "?limit=ten&wait=31&lease_seconds=9&colour=red", ``, 400, []string{"app_id", "colour", "lease_seconds", "limit", "wait"}},
		{"GET", pending + "?app_id=" + strings.Repeat("a", 500), ``, 400, []string{"app_id"}},
		{"GET", pending + "?app_id=%00", ``, 400, []string{"app_id"}},
		{"HEAD", pending + "?app_id=a", ``, 405, nil},
		{"DELETE", pending + "?app_id=a", ``, 405, nil},
		{"POST", report, `{"task_id":"x","app_id":"a","status":7}`, 400, []string{"status"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":2.5}`, 400, []string{"status"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":3,"should_rety":true}`, 400, []string{"should_rety"}},
		{"POST", report, `{}`, 400, []string{"app_id", "status", "task_id"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":2,"outcome":"unknown"}`, 400, []string{"outcome"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":2,"claim_id":9223372036854775808}`, 400, []string{"claim_id"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":2,"sent_at":"0000-06-01T00:00:00Z"}`, 400, []string{"sent_at"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":2,"sent_at":"9999-12-31T23:59:59-01:00"}`, 400, []string{"sent_at"}},
		{"POST", report, `{"task_id":"x","app_id":"a","status":2}`, 404, nil},
		{"POST", report, `{"task_id":"019a0000-0000-7000-8000-000000000000","app_id":"a","status":2}`, 404, nil},
		{"GET", "/api/v1/sms/task/019a0000-0000-7000-8000-000000000000", ``, 404, nil},
		{"GET", "/api/v1/sms/task/" + strings.Repeat("9", 300), ``, 404, nil},
		{"GET", "/api/v1/sms/by-key/%00", ``, 400, []string{"key"}},
		{"POST", "/api/v1/sms/tasks/x/extend", `{"app_id":"a"}`, 404, nil},
		{"POST", "/api/v1/sms/tasks/x/extend", `{"lease_seconds":1}`, 400, []string{"app_id", "lease_seconds"}},
		{"GET", "/api/v2/sms/send", ``, 404, nil},
		{"POST", "/events/sweep", `{}`, 400, nil},
	} {
		name := c.method + " " + c.path[:min(len(c.path), 60)] + " " + c.body[:min(len(c.body), 120)]
		got := s.Do(c.method, c.path, c.body)
		require.Equal(t, c.status, got.Status, "%s\n%s", name, got.Text)
		if c.method != "HEAD" {
			require.EqualValues(t, c.status, got.Body["code"], name)
			require.NotEmpty(t, got.Body["error"], name)
			require.NotEmpty(t, got.Body["message"], name)
		}
		if c.fields != nil {
			require.ElementsMatch(t, c.fields, got.Fields(), "%s\n%s", name, got.Text)
		}
	}
	form := s.Do("POST", send, `phone_number=1`, "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(t, 415, form.Status)
	for _, table := range []string{"tasks", "task_live", "task_done", "submission_keys", "send_logs", "report_logs"} {
		require.Zero(t, s.Count(`select count(*) from `+table), table)
	}
	require.Positive(t, s.Count(`select count(*) from receive_logs where status_code = 400 and request_data is not null`))
	require.Positive(t, s.Count(`select count(*) from receive_logs where status_code = 404 and phone_number = '13800138000'`))
}

// If the request names a template, this template is sent or the request is refused. The default content of the number is never sent
// instead.
func TestNamedTemplateIsNotReplacedByDefault(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	s.Post("/api/v1/admin/template", `{"template_name":"plain","template_content":"Plain text"}`)
	s.Post("/api/v1/admin/default-sms", `{"phone_number":"13800138000","content":"DEFAULT"}`)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","template_name":"plain"}`).RequireOK()
	require.Equal(t, "Plain text", sent.Data("final_content"))
	unknown := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","template_name":"nosuch"}`)
	require.Equal(t, 400, unknown.Status, unknown.Text)
	require.Contains(t, unknown.Text, "template_name")
	require.Zero(t, s.Count(`select count(*) from default_sms_data where is_sent`))
}
