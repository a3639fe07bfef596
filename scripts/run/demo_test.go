package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestPrintable(t *testing.T) {
	t.Parallel()
	require.Equal(t, "你好  [2Jworld 👍", printable("你好\n\x1b[2Jworld\u202e👍"))
}

// fake is a fake server that fails the first claim, then returns one task, then none.
type fake struct {
	mu       sync.Mutex
	claims   int
	reported chan api.ReportRequest
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := api.Envelope{Code: http.StatusOK, Message: "success"}
	user, password, _ := r.BasicAuth()
	switch {
	case user != "admin" || password != "secret":
		answer = api.Envelope{Code: http.StatusUnauthorized, Message: "no"}
	case r.URL.Path == "/api/v1/sms/tasks/pending":
		if f.claims++; f.claims == 1 {
			answer = api.Envelope{Code: http.StatusServiceUnavailable, Message: "busy", Error: "server_busy"}
		} else if f.claims == 2 {
			answer.Data = []api.ClaimedTask{{TaskID: "t", PhoneNumber: "13800138000", Content: "hi", ClaimID: 7}}
		} else {
			answer.Data = []api.ClaimedTask{}
		}
	case r.URL.Path == "/api/v1/sms/tasks/t/extend":
		answer.Data = api.ExtendResponse{TaskID: "t", ClaimID: 7, Sending: true}
	case r.URL.Path == "/api/v1/sms/report/batch":
		var batch api.ReportBatchRequest
		var report api.ReportRequest
		if json.NewDecoder(r.Body).Decode(&batch) != nil || len(batch.Items) != 1 || json.Unmarshal(batch.Items[0], &report) != nil {
			answer = api.Envelope{Code: http.StatusBadRequest, Message: "bad"}
			break
		}
		answer.Data = api.BatchResponse{Items: []api.BatchItem{{Code: http.StatusOK, Message: "success"}}}
		f.reported <- report
	default:
		answer = api.Envelope{Code: http.StatusNotFound, Message: r.URL.Path}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.Code)
	_ = json.NewEncoder(w).Encode(answer)
}

func TestDemoSender(t *testing.T) {
	t.Parallel()
	server := &fake{reported: make(chan api.ReportRequest, 1)}
	fakeServer := httptest.NewServer(server)
	defer fakeServer.Close()
	out := &sandbox.LogBuffer{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		demoSender{api.NewClient(fakeServer.URL, "admin", "secret"), out, filepath.Join(t.TempDir(), "journal")}.run(ctx)
	}()
	select {
	case report := <-server.reported:
		require.Equal(t, "t", report.TaskID)
		require.EqualValues(t, 7, report.ClaimID)
		require.Equal(t, 2, *report.Status)
	case <-time.After(time.Minute):
		require.Fail(t, "nothing was reported", out.String())
	}
	stop()
	<-ended
	require.Equal(t, 1, strings.Count(out.String(), "sent to 138****8000: hi\n"))
	require.Contains(t, out.String(), "sender: nothing claimed")
	require.NotContains(t, out.String(), "demo sender:")
}
