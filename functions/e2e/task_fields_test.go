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

// requestField is a field of a request. If some views do not show its value, a comment says why.
type requestField struct {
	value any               // to send; nil = not sent, or set by the test
	in    []string          // the views that show the field
	names map[string]string // by view: the name of the field, if it has another name there; "" = in all other views
}

// The views of a task, where its fields are shown.
const (
	inGet      = "GET"
	inArchive  = "GET of the archived task"
	inAdmin    = "admin"
	inTimeline = "timeline"
	inEvent    = "event"
)

var (
	inTaskViews  = []string{inGet, inArchive, inAdmin}
	inAdminViews = []string{inAdmin, inTimeline}
	inAllViews   = []string{inGet, inArchive, inAdmin, inTimeline, inEvent}
	notShown     []string
)

// submittedFields are the fields of a submission. An event has only the fields by which the submitter recognises the
// task. The timeline shows who called and when, not the fields.
var submittedFields = map[string]requestField{
	"phone_number":    {value: "13800138077", in: inTaskViews},
	"content":         {value: "name=Ann", in: notShown}, // parameters of the template
	"use_template":    {value: true, in: notShown},
	"source":          {value: "crm", in: append([]string{inEvent}, inTaskViews...)},
	"idempotency_key": {value: "key-77", in: notShown}, // GET by-key finds the task
	"template_id":     {in: notShown},                  // not allowed with template_name
	"template_name":   {value: "greeting", in: notShown},
	"params":          {in: notShown}, // not allowed with content
	"priority":        {value: 7, in: inTaskViews},
	"send_at":         {value: "2026-01-02T03:04:05Z", in: inTaskViews},
	"ttl_seconds":     {in: notShown}, // not allowed with expires_at
	"expires_at":      {value: time.Now().UTC().AddDate(0, 1, 0).Truncate(time.Second).Format(time.RFC3339), in: inTaskViews},
	"max_retries":     {value: 8, in: inTaskViews},
	"on_unknown":      {value: "hold", in: inTaskViews},
	"queue":           {value: "q77", in: inTaskViews},
	"callback_url":    {value: "https://shop.test/callback", in: inTaskViews},
	"metadata":        {value: map[string]any{"order": "77"}, in: append([]string{inEvent}, inTaskViews...)},
}

// reportedFields are the fields of a report of success. should_retry, outcome and retry_after_seconds only decide the
// next state of the task, and are not shown.
var reportedFields = map[string]requestField{
	"task_id":             {in: []string{inGet, inArchive, inAdmin, inEvent}}, // a timeline is that of one task
	"app_id":              {value: "app", in: inAdminViews},
	"claim_id":            {in: inAdminViews},
	"status":              {value: 2, in: inAllViews},
	"error_message":       {value: "carrier 77", in: inAllViews, names: map[string]string{"": "result", inTimeline: "message"}},
	"error_code":          {value: "E77", in: inAllViews},
	"should_retry":        {value: true, in: notShown},
	"outcome":             {in: notShown},
	"retry_after_seconds": {in: notShown},
	"sent_at":             {value: "2026-01-02T03:05:06Z", in: []string{inGet, inArchive, inAdmin, inEvent}}, // not in the timeline: report_logs has it only in the stored request
}

// emptyFields are the fields of each view that are absent for this task.
var emptyFields = map[string][]string{
	inGet:      {"reason", "archived"},
	inArchive:  {"reason"},
	inAdmin:    {"reason", "archived", "lease_until"},
	inTimeline: {"caller_name", "state"}, // only decisions of operators have these
	inEvent:    {"reason"},
}

func TestEveryFieldIsShownInItsViews(t *testing.T) {
	t.Parallel()
	s, nc := cluster.OwnServer.ServeWithNATS(t)
	s.Post("/api/v1/admin/template", `{"template_name":"greeting","template_content":"Hello {name}"}`).RequireOK()

	sent := s.Post("/api/v1/sms/send", requestBody[api.SendRequest](t, submittedFields, nil)).RequireOK()
	claimed := s.Get("/api/v1/sms/tasks/pending?app_id=app&queue=q77").List()
	require.Len(t, claimed, 1)
	ids := map[string]any{"task_id": sent.Data("task_id"), "claim_id": claimed[0]["claim_id"]}
	s.Post("/api/v1/sms/report", requestBody[api.ReportRequest](t, reportedFields, ids)).RequireOK()

	path := "/api/v1/sms/task/" + ids["task_id"].(string)
	admin := s.Get(strings.Replace(path, "sms/task", "admin/tasks", 1))
	shown := map[string]map[string]any{
		inGet: s.Get(path).Body["data"].(map[string]any), inAdmin: admin.Data("task").(map[string]any), inTimeline: {}, inEvent: publishedEvent(t, s, nc),
	}
	for _, entry := range admin.Data("timeline").([]any) {
		for name, value := range entry.(map[string]any) {
			shown[inTimeline][name] = value
		}
	}
	archivedID := makeOld(s, ids["task_id"].(string))
	code, printed := archive(t, s.Owner.Config().ConnString())
	require.Zero(t, code, printed)
	shown[inArchive] = s.Get("/api/v1/sms/task/" + archivedID).Body["data"].(map[string]any)
	require.Equal(t, archivedID, shown[inArchive]["task_id"])
	shown[inArchive]["task_id"] = ids["task_id"]

	for view, response := range map[string]reflect.Type{
		inGet: reflect.TypeFor[api.TaskResponse](), inArchive: reflect.TypeFor[api.TaskResponse](), inAdmin: reflect.TypeFor[api.AdminTask](),
		inTimeline: reflect.TypeFor[api.TaskEvent](), inEvent: reflect.TypeFor[api.TaskEventData](),
	} {
		for _, name := range jsonNames(response) {
			_, found := shown[view][name]
			assert.Equal(t, !slices.Contains(emptyFields[view], name), found, "%s of %s: %v", name, view, shown[view])
		}
	}
	for _, fields := range []map[string]requestField{submittedFields, reportedFields} {
		for name, f := range fields {
			want := f.value
			if want == nil {
				want = ids[name]
			}
			for _, view := range f.in {
				shownAs, renamed := f.names[view]
				if !renamed {
					if shownAs, renamed = f.names[""]; !renamed {
						shownAs = name
					}
				}
				assert.Equal(t, fmt.Sprint(want), fmt.Sprint(shown[view][shownAs]), "%s must be %s of %s: %v", name, shownAs, view, shown[view])
			}
		}
	}
}

// requestBody returns the body of a request R with the values of fields and ids. The test fails if fields lacks a field
// of R.
func requestBody[R any](t *testing.T, fields map[string]requestField, ids map[string]any) string {
	t.Helper()
	var known []string
	body := map[string]any{}
	for name, f := range fields {
		known = append(known, name)
		if value := f.value; value != nil {
			body[name] = value
		}
	}
	for name, value := range ids {
		body[name] = value
	}
	require.ElementsMatch(t, jsonNames(reflect.TypeFor[R]()), known, "each field of %s needs an entry that lists the views that show it", reflect.TypeFor[R]())
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return string(text)
}

func jsonNames(typ reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(typ) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// publishedEvent runs the relay and returns the data of the last task.succeeded event.
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
