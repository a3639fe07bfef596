package admin_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// testServer serves all functions in this process, with a new database.
type testServer struct {
	*cluster.Client
	env *fn.Env
}

func startServer(t *testing.T) *testServer {
	t.Helper()
	env, handler := cluster.NewEnv(t, sandbox.NewDatabase(t))
	return &testServer{cluster.ServeHandler(t, handler), env}
}

// call calls a path below /api/v1/admin/ as the built-in admin.
func (s *testServer) call(method, path, body string) cluster.Reply {
	s.T.Helper()
	return s.Do(method, cluster.AdminPath+path, body)
}

// mustCall makes a call, requires 200, and returns the data.
func mustCall[T any](s *testServer, method, path, body string) T {
	s.T.Helper()
	r := s.call(method, path, body)
	require.Equal(s.T, http.StatusOK, r.Status, "%s %s: %s", method, path, r.Text)
	var envelope struct{ Data T }
	require.NoError(s.T, json.Unmarshal([]byte(r.Text), &envelope))
	return envelope.Data
}

// requireError makes a call and requires a status, an error code and exactly these invalid fields.
func (s *testServer) requireError(status int, code string, fields []string, method, path, body string) {
	s.T.Helper()
	r := s.call(method, path, body)
	require.Equal(s.T, status, r.Status, "%s %s %s: %s", method, path, body, r.Text)
	require.Equal(s.T, code, r.Body["error"])
	require.ElementsMatch(s.T, fields, r.Fields(), "%s %s %s", method, path, body)
}

func (s *testServer) submit(change func(*tasks.Submission)) task.ID {
	s.T.Helper()
	submission := &tasks.Submission{
		ID: task.NewID(), Queue: task.DefaultQueue, Priority: task.DefaultPriority, MaxRetries: 3, Phone: "13800138000",
		Draft: task.Draft{Content: "hello"}, RequestID: "r", SourceIP: "192.0.2.7", Request: []byte(`{}`),
	}
	if change != nil {
		change(submission)
	}
	outs, errs := s.env.Tasks.Submit([]*tasks.Submission{submission})
	require.NoError(s.T, errs[0])
	require.Nil(s.T, outs[0].Refused)
	return submission.ID
}

func (s *testServer) claim() tasks.Claimed {
	s.T.Helper()
	claimed, _, err := s.env.Tasks.Claim(s.T.Context(), tasks.ClaimRequest{
		Queue: task.DefaultQueue, AppID: "app", Limit: 1, Lease: time.Minute, Request: []byte(`{}`),
	})
	require.NoError(s.T, err)
	require.Len(s.T, claimed, 1)
	return claimed[0]
}

// claimAndReport claims the next task, reports an outcome and returns the id of the task.
func (s *testServer) claimAndReport(outcome task.Outcome) task.ID {
	s.T.Helper()
	c := s.claim()
	outs, errs := s.env.Tasks.Report([]*tasks.Report{{
		Report:  task.Report{TaskID: c.ID, AppID: "app", ClaimID: c.ClaimID, Outcome: outcome, Message: "no signal"},
		Request: []byte(`{}`),
	}})
	require.NoError(s.T, errs[0])
	require.Equal(s.T, task.Applied, outs[0].Verdict)
	return c.ID
}
