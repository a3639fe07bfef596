package admin_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/admin"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

const root = "/api/v1/admin/"

// testServer serves the function admin over TCP, with a new database.
type testServer struct {
	*testing.T
	env *fn.Env
	url string
}

func startServer(t *testing.T) *testServer {
	t.Helper()
	env, err := fn.NewEnv(settings.Config{
		DatabaseURL: sandbox.NewDatabase(t), Roles: settings.Roles(sandbox.Roles), Username: "admin", Password: "secret", EncryptionKeys: sandbox.EncryptionKey,
	}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	handler, err := fn.Handler(env, admin.Function)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &testServer{T: t, env: env, url: server.URL}
}

// response is the body of a response; Data is not decoded.
type response struct {
	Code    int
	Error   string
	Message string
	Fields  []api.Field
	Data    json.RawMessage
}

// fields returns the names of the invalid fields.
func (r response) fields() (names []string) {
	for _, f := range r.Fields {
		names = append(names, f.Field)
	}
	return names
}

func (o *testServer) callAs(user, password, method, path, body string) response {
	o.Helper()
	req, err := http.NewRequestWithContext(o.Context(), method, o.url+root+path, strings.NewReader(body))
	require.NoError(o, err)
	req.SetBasicAuth(user, password)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(o, err)
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent {
		return response{Code: res.StatusCode}
	}
	var r response
	require.NoError(o, json.NewDecoder(res.Body).Decode(&r))
	require.Equal(o, res.StatusCode, r.Code)
	return r
}

func (o *testServer) call(method, path, body string) response {
	o.Helper()
	return o.callAs("admin", "secret", method, path, body)
}

// mustCall makes a call, requires 200, and returns the data.
func mustCall[T any](o *testServer, method, path, body string) (data T) {
	o.Helper()
	r := o.call(method, path, body)
	require.Equal(o, http.StatusOK, r.Code, "%s %s: %s %v", method, path, r.Message, r.Fields)
	require.NoError(o, json.Unmarshal(r.Data, &data))
	return data
}

// requireError makes a call and requires a status, an error code and these invalid fields.
func (o *testServer) requireError(status int, code string, fields []string, method, path, body string) {
	o.Helper()
	r := o.call(method, path, body)
	require.Equal(o, status, r.Code, "%s %s %s: %s", method, path, body, r.Message)
	require.Equal(o, code, r.Error)
	require.ElementsMatch(o, fields, r.fields(), "%s %s %s", method, path, body)
}

func (o *testServer) submit(change func(*tasks.Submission)) task.ID {
	o.Helper()
	s := &tasks.Submission{
		ID: task.NewID(), Queue: task.DefaultQueue, Priority: task.DefaultPriority, MaxRetries: 3, Phone: "13800138000",
		Draft: task.Draft{Content: "hello"}, RequestID: "r", SourceIP: "192.0.2.7", Request: []byte(`{}`),
	}
	if change != nil {
		change(s)
	}
	outs, errs := o.env.Tasks.Submit([]*tasks.Submission{s})
	require.NoError(o, errs[0])
	require.Nil(o, outs[0].Refused)
	return s.ID
}

func (o *testServer) claim() tasks.Claimed {
	o.Helper()
	claimed, _, err := o.env.Tasks.Claim(o.Context(), tasks.ClaimRequest{
		Queue: task.DefaultQueue, AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`),
	})
	require.NoError(o, err)
	require.Len(o, claimed, 1)
	return claimed[0]
}

// claimAndReport claims the oldest pending task and reports an outcome.
func (o *testServer) claimAndReport(outcome task.Outcome) task.ID {
	o.Helper()
	c := o.claim()
	outs, errs := o.env.Tasks.Report([]*tasks.Report{{
		Report:  task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: outcome, Message: "no signal"},
		Request: []byte(`{}`),
	}})
	require.NoError(o, errs[0])
	require.Equal(o, task.Applied, outs[0].Verdict)
	return c.ID
}

// actions returns the actions of the audit entries of a subject, newest first.
func (o *testServer) actions(subject string) (actions []string) {
	o.Helper()
	for _, a := range mustCall[api.Page[api.ActionResponse]](o, "GET", "actions?subject="+url.QueryEscape(subject), "").Items {
		actions = append(actions, a.Action)
	}
	return actions
}
