package e2e

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
)

// shownField is a field of a request: its value, where the value is shown, and under which name if
// that is not its own. A field that is not shown somewhere has a reason in its comment.
type shownField struct {
	value any
	in    []string
	as    map[string]string
}

// The places where a task is shown.
const (
	inGet      = "GET"
	inArchive  = "GET of the archived task"
	inAdmin    = "admin"
	inTimeline = "timeline"
	inEvent    = "event"
)

var (
	toSubmitter = []string{inGet, inArchive, inAdmin}
	toOperator  = []string{inAdmin, inTimeline}
	inEach      = []string{inGet, inArchive, inAdmin, inTimeline, inEvent}
	notShown    []string
)

// submittedFields: an event has no phone number and no content, and of the rest only what the
// submitter needs to recognise the task. The timeline has the request, not its fields.
var submittedFields = map[string]shownField{
	"phone_number":    {value: "13800138077", in: toSubmitter},
	"content":         {value: "name=Ann", in: notShown}, // parameters of the template
	"use_template":    {value: true, in: notShown},
	"source":          {value: "crm", in: append([]string{inEvent}, toSubmitter...)},
	"idempotency_key": {value: "key-77", in: notShown}, // GET by-key finds the task
	"template_id":     {in: notShown},                  // not together with template_name
	"template_name":   {value: "greeting", in: notShown},
	"params":          {in: notShown}, // not together with content
	"priority":        {value: 7, in: toSubmitter},
	"send_at":         {value: "2026-01-02T03:04:05Z", in: toSubmitter},
	"ttl_seconds":     {in: notShown}, // not together with expires_at
	"expires_at":      {value: time.Now().UTC().AddDate(0, 1, 0).Truncate(time.Second).Format(time.RFC3339), in: toSubmitter},
	"max_retries":     {value: 8, in: toSubmitter},
	"on_unknown":      {value: "hold", in: toSubmitter},
	"queue":           {value: "q77", in: toSubmitter},
	"callback_url":    {value: "https://shop.test/callback", in: toSubmitter},
	"metadata":        {value: map[string]any{"order": "77"}, in: append([]string{inEvent}, toSubmitter...)},
}

// reportedFields of a success: should_retry, outcome and retry_after_seconds only decide.
var reportedFields = map[string]shownField{
	"task_id":             {in: []string{inGet, inArchive, inAdmin, inEvent}}, // the timeline is of one task
	"app_id":              {value: "app", in: toOperator},
	"claim_id":            {in: toOperator},
	"status":              {value: 2, in: inEach},
	"error_message":       {value: "carrier 77", in: inEach, as: map[string]string{"": "result", inTimeline: "message"}},
	"error_code":          {value: "E77", in: inEach},
	"should_retry":        {value: true, in: notShown},
	"outcome":             {in: notShown},
	"retry_after_seconds": {in: notShown},
	"sent_at":             {value: "2026-01-02T03:05:06Z", in: []string{inGet, inArchive, inAdmin, inEvent}}, // report_logs has the request
}

// unshown are the fields of answers that this task leaves empty.
var unshown = map[string][]string{
	inGet:      {"reason", "archived"},
	inArchive:  {"reason"},
	inAdmin:    {"reason", "archived", "lease_until"},
	inTimeline: nil,
	inEvent:    {"reason"},
}

func TestEveryFieldOfATaskIsShown(t *testing.T) {
	t.Parallel()
	s, nc := cluster.OwnServer.ServeWithNATS(t)
	created := s.Post("/api/v1/admin/template", `{"template_name":"greeting","template_content":"Hello {name}"}`)
	require.Equal(t, 200, created.Status, created.Text)

	sent := s.Post("/api/v1/sms/send", requestBody[api.SendRequest](t, submittedFields, nil))
	require.Equal(t, 200, sent.Status, sent.Text)
	claimed := s.Get("/api/v1/sms/tasks/pending?app_id=app&queue=q77").List()
	require.Len(t, claimed, 1)
	given := map[string]any{"task_id": sent.Data("task_id"), "claim_id": claimed[0]["claim_id"]}
	reported := s.Post("/api/v1/sms/report", requestBody[api.ReportRequest](t, reportedFields, given))
	require.Equal(t, 200, reported.Status, reported.Text)

	path := "/api/v1/sms/task/" + given["task_id"].(string)
	admin := s.Get(strings.Replace(path, "sms/task", "admin/tasks", 1))
	shown := map[string]map[string]any{
		inGet: s.Get(path).Body["data"].(map[string]any), inAdmin: admin.Data("task").(map[string]any), inTimeline: {}, inEvent: publishedEvent(t, s, nc),
	}
	for _, line := range admin.Data("timeline").([]any) {
		for name, value := range line.(map[string]any) {
			shown[inTimeline][name] = value
		}
	}
	// Archiving goes by age.
	old := age(s, given["task_id"].(string))
	code, printed := archive(t, s.Owner.Config().ConnString())
	require.Zero(t, code, printed)
	shown[inArchive] = s.Get("/api/v1/sms/task/" + old).Body["data"].(map[string]any)
	require.Equal(t, old, shown[inArchive]["task_id"])
	shown[inArchive]["task_id"] = given["task_id"]

	for place, answer := range map[string]reflect.Type{
		inGet: reflect.TypeFor[api.TaskResponse](), inArchive: reflect.TypeFor[api.TaskResponse](), inAdmin: reflect.TypeFor[api.AdminTask](),
		inTimeline: reflect.TypeFor[api.TaskEvent](), inEvent: reflect.TypeFor[api.TaskEventData](),
	} {
		for _, name := range jsonNames(answer) {
			_, has := shown[place][name]
			assert.Equal(t, !slices.Contains(unshown[place], name), has, "%s of %s: %v", name, place, shown[place])
		}
	}
	for _, fields := range []map[string]shownField{submittedFields, reportedFields} {
		for name, f := range fields {
			want := f.value
			if want == nil {
				want = given[name]
			}
			for _, place := range f.in {
				as, special := f.as[place]
				if !special {
					if as, special = f.as[""]; !special {
						as = name
					}
				}
				assert.Equal(t, fmt.Sprint(want), fmt.Sprint(shown[place][as]), "%s is %s of %s: %v", name, as, place, shown[place])
			}
		}
	}
}

// requestBody is a request that has every field that has a value.
func requestBody[R any](t *testing.T, fields map[string]shownField, given map[string]any) string {
	t.Helper()
	var known []string
	body := map[string]any{}
	for name, f := range fields {
		known = append(known, name)
		if value := f.value; value != nil {
			body[name] = value
		}
	}
	for name, value := range given {
		body[name] = value
	}
	require.ElementsMatch(t, jsonNames(reflect.TypeFor[R]()), known, "each field of %s needs a line that says where it is shown", reflect.TypeFor[R]())
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return string(text)
}

func jsonNames(of reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// publishedEvent publishes the only event that waits and returns its data.
func publishedEvent(t *testing.T, s *cluster.Client, nc *nats.Conn) (data map[string]any) {
	t.Helper()
	require.Equal(t, 204, s.Tick("relay").Status)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	events, err := js.Stream(t.Context(), bus.StreamEvents)
	require.NoError(t, err)
	m, err := events.GetLastMsgForSubject(t.Context(), bus.EventPrefix+"task.succeeded")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(m.Data, &data))
	return data
}
