package submit_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

func TestBadPhoneNumberIsExplained(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for _, path := range []string{"/api/v1/sms/send", "/api/v1/admin/default-sms"} {
		for text, want := range map[string]string{`"00000"`: "has 3 digits after 00; it must be + or 00 and 7 to 15 digits", `13800138000`: "must be a string"} {
			refused := s.Post(path, `{"phone_number":`+text+`,"content":"x"}`)
			require.Equal(t, 400, refused.Status, refused.Text)
			require.Equal(t, []string{"phone_number"}, refused.Fields(), refused.Text)
			require.Contains(t, refused.Text, want)
		}
	}
	missing := s.Post("/api/v1/sms/send/batch", `{"items":[{"content":"x","priority":11}]}`)
	require.Contains(t, missing.Text, `"field":"phone_number","message":"is required`)
	require.Contains(t, missing.Text, `"field":"priority"`)
	unescaped := s.Get("/api/v1/admin/tasks?phone_number=+8613800138000")
	require.Contains(t, unescaped.Text, "in a query string write + as %2B")
}

func TestPhoneNumberPunctuationIsRemovedAndLogged(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Do("POST", "/api/v1/sms/send", `{"phone_number":"+1 (415) 555-2671","content":"x"}`, "User-Agent", strings.Repeat("号", 600)).RequireOK()
	id := sent.Data("task_id").(string)
	require.Equal(t, "+14155552671", s.Get("/api/v1/sms/task/"+id).Data("phone_number"))
	require.Equal(t, "+14155552671", s.Get("/api/v1/sms/tasks/pending?app_id=a").List()[0]["phone_number"])
	require.Equal(t, 1, s.Count(`select count(*) from receive_logs where length(user_agent) = 500
		and task_id = $1 and phone_number = '+14155552671' and request_data ->> 'phone_number' = '+1 (415) 555-2671'`, id))
	for _, number := range []string{"13800138000", "10086", "95588", "110"} {
		sent := s.Post("/api/v1/sms/send", `{"phone_number":"`+number+`","content":"x"}`)
		require.Equal(t, number, s.Get("/api/v1/sms/task/"+sent.Data("task_id").(string)).Data("phone_number"))
	}
}

// inChina serves all functions with the default country 86.
func inChina(t *testing.T, url string) *cluster.Client {
	t.Helper()
	return cluster.ServeOn(t, url, func(c *settings.Config) { c.PhoneCountry = "86" })
}

func TestCountryNormalizesPhoneNumbers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	before := cluster.ServeOn(t, url)
	before.Post("/api/v1/admin/default-sms", `{"phone_number":"13900139000","content":"welcome"}`).RequireOK()
	old := before.Post("/api/v1/sms/send", `{"phone_number":"139-0013-9000","content":"old"}`).Data("task_id")

	s := inChina(t, url)
	for _, text := range []string{"+86 139 0013 9000", "0086 139 0013 9000", "13900139000"} {
		exists := s.Post("/api/v1/admin/default-sms", `{"phone_number":"`+text+`","content":"again"}`)
		require.Equal(t, 409, exists.Status, exists.Text)
		require.Equal(t, "default_exists", exists.Body["error"])
	}
	first := s.Post("/api/v1/sms/send", `{"phone_number":"+86 139 0013 9000"}`).RequireOK()
	require.Equal(t, "welcome", first.Data("final_content"))
	for _, text := range []string{"13900139000", "0086139-0013-9000", "+8613900139000"} {
		spent := s.Post("/api/v1/sms/send", `{"phone_number":"`+text+`"}`)
		require.Equal(t, "default_already_sent", spent.Body["error"], spent.Text)
	}
	require.Equal(t, "+8613900139000", s.Get("/api/v1/sms/task/"+first.Data("task_id").(string)).Data("phone_number"))
	service := s.Post("/api/v1/sms/send", `{"phone_number":"10086","content":"x"}`)
	require.Equal(t, "10086", s.Get("/api/v1/sms/task/"+service.Data("task_id").(string)).Data("phone_number"))

	for _, text := range []string{"13900139000", "%2B8613900139000", "0086%20139%200013%209000"} {
		found := s.Get("/api/v1/admin/tasks?phone_number=" + text).Data("items").([]any)
		require.Len(t, found, 2, "%s", text)
		require.Equal(t, first.Data("task_id"), found[0].(map[string]any)["task_id"])
		require.Equal(t, old, found[1].(map[string]any)["task_id"])
		require.Len(t, s.Get("/api/v1/admin/default-sms?phone_number="+text).Data("items"), 1)
	}
	page := s.Get("/api/v1/admin/tasks?limit=1&phone_number=13900139000")
	next := s.Get("/api/v1/admin/tasks?limit=1&phone_number=13900139000&after=" + page.Data("next_after").(string))
	require.Equal(t, old, next.Data("items").([]any)[0].(map[string]any)["task_id"])
}

func TestKeyIsFoundAfterPhoneRulesChange(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	before := cluster.ServeOn(t, url)
	const body = `{"phone_number":"13800138000","content":"x","idempotency_key":"k"}`
	first := before.Post("/api/v1/sms/send", body)

	s := inChina(t, url)
	require.Equal(t, first.Data("task_id"), s.Post("/api/v1/sms/send", body).RequireOK().Data("task_id"))
	other := s.Post("/api/v1/sms/send", `{"phone_number":"138-0013-8000","content":"x","idempotency_key":"k"}`)
	require.Equal(t, 422, other.Status, "the same number in another form is another request: %s", other.Text)

	// From here on, the key belongs to a request whose phone number was accepted before the rules became stricter.
	accepted, err := task.Fingerprint(api.SendRequest{PhoneNumber: "00000", Content: "x"})
	require.NoError(t, err)
	before.Exec(`update submission_keys set fingerprint = $1 where key = $2`, accepted, task.KeyHash(0, "sms", "k"))
	const acceptedBefore = `{"phone_number":"00000","content":"x","idempotency_key":"k"}`
	replay := s.Post("/api/v1/sms/send", acceptedBefore)
	require.Equal(t, 200, replay.Status, "a repeat of an accepted request is accepted: %s", replay.Text)
	require.Equal(t, first.Data("task_id"), replay.Data("task_id"))
	require.Equal(t, 400, s.Post("/api/v1/sms/send", `{"phone_number":"00000","content":"x","idempotency_key":"new"}`).Status)
	require.Equal(t, 0, s.Count(`select count(*) from submission_keys where key = $1`, task.KeyHash(0, "sms", "new")))
}

func TestOldestDefaultOfANumberIsSent(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	before := cluster.ServeOn(t, url)
	for _, number := range []string{"13900139000", "+8613900139000"} {
		before.Post("/api/v1/admin/default-sms", `{"phone_number":"`+number+`","content":"for `+number+`"}`).RequireOK()
	}
	s := inChina(t, url)
	require.Len(t, s.Get("/api/v1/admin/default-sms?phone_number=13900139000").Data("items"), 2, "both are listed")
	require.Equal(t, "for 13900139000", s.Post("/api/v1/sms/send", `{"phone_number":"+8613900139000"}`).Data("final_content"))
	require.Equal(t, 409, s.Post("/api/v1/sms/send", `{"phone_number":"+8613900139000"}`).Status, "only one default is sent to a number")
}
