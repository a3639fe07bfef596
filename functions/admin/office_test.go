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
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

const root = "/api/v1/admin/"

// office is the function behind a real socket, on a database of its own.
type office struct {
	*testing.T
	env *fn.Env
	url string
}

func openOffice(t *testing.T) *office {
	t.Helper()
	env, err := fn.NewEnv(fn.Config{
		DatabaseURL: sandbox.NewDatabase(t), Roles: fn.Roles(sandbox.Roles), Username: "admin", Password: "secret", EncryptionKeys: sandbox.EncryptionKey,
	}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	handler, err := fn.Handler(env, admin.Function)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &office{T: t, env: env, url: server.URL}
}

// reply is an answer whose data is still JSON.
type reply struct {
	Code    int
	Error   string
	Message string
	Fields  []api.Field
	Data    json.RawMessage
}

// fields are the names of what was refused.
func (r reply) fields() (names []string) {
	for _, f := range r.Fields {
		names = append(names, f.Field)
	}
	return names
}

func (o *office) callAs(user, password, method, path, body string) reply {
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
		return reply{Code: res.StatusCode}
	}
	var r reply
	require.NoError(o, json.NewDecoder(res.Body).Decode(&r))
	require.Equal(o, res.StatusCode, r.Code)
	return r
}

func (o *office) call(method, path, body string) reply {
	o.Helper()
	return o.callAs("admin", "secret", method, path, body)
}

// must makes a call that succeeds, and gives its data.
func must[T any](o *office, method, path, body string) (data T) {
	o.Helper()
	r := o.call(method, path, body)
	require.Equal(o, http.StatusOK, r.Code, "%s %s: %s %v", method, path, r.Message, r.Fields)
	require.NoError(o, json.Unmarshal(r.Data, &data))
	return data
}

// refused makes a call that is answered with a code, an error word and bad fields.
func (o *office) refused(code int, word string, fields []string, method, path, body string) {
	o.Helper()
	r := o.call(method, path, body)
	require.Equal(o, code, r.Code, "%s %s %s: %s", method, path, body, r.Message)
	require.Equal(o, word, r.Error)
	require.ElementsMatch(o, fields, r.fields(), "%s %s %s", method, path, body)
}

func (o *office) submit(change func(*store.Submission)) task.ID {
	o.Helper()
	s := &store.Submission{
		ID: task.NewID(), Queue: task.DefaultQueue, Priority: task.DefaultPriority, MaxRetries: 3, Phone: "13800138000",
		Draft: task.Draft{Content: "hello"}, RequestID: "r", SourceIP: "192.0.2.7", Request: []byte(`{}`),
	}
	if change != nil {
		change(s)
	}
	outs, errs := o.env.DB().Submit([]*store.Submission{s})
	require.NoError(o, errs[0])
	require.Nil(o, outs[0].Refused)
	return s.ID
}

func (o *office) claim() store.Claimed {
	o.Helper()
	claimed, _, err := o.env.DB().Claim(o.Context(), store.ClaimRequest{
		Queue: task.DefaultQueue, AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`),
	})
	require.NoError(o, err)
	require.Len(o, claimed, 1)
	return claimed[0]
}

// claimAndReport gives the outcome of an attempt at the oldest pending task.
func (o *office) claimAndReport(outcome task.Outcome) task.ID {
	o.Helper()
	c := o.claim()
	outs, errs := o.env.DB().Report([]*store.Report{{
		Report:  task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: outcome, Message: "said"},
		Request: []byte(`{}`),
	}})
	require.NoError(o, errs[0])
	require.Equal(o, task.Applied, outs[0].Verdict)
	return c.ID
}

// actions are the words of what was done to a subject, newest first.
func (o *office) actions(subject string) (words []string) {
	o.Helper()
	for _, a := range must[api.Page[api.ActionResponse]](o, "GET", "actions?subject="+url.QueryEscape(subject), "").Items {
		words = append(words, a.Action)
	}
	return words
}
