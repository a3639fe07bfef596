package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func TestAPhoneNumberIsMasked(t *testing.T) {
	t.Parallel()
	for phone, want := range map[string]string{
		"13800138000": "138****8000", "+8613800138000": "+86****8000", "12345678": "123****5678",
		"1234567": "1****7", "12345": "1****5", "1234": "****", "": "****",
	} {
		require.Equal(t, want, mask(phone), phone)
	}
}

func TestAMessageDoesNotMoveTheCursor(t *testing.T) {
	t.Parallel()
	require.Equal(t, "你好  [2Jworld 👍", printable("你好\n\x1b[2Jworld\u202e👍"))
}

// lines is a terminal that several goroutines write to.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// fake is the server as the demo sender sees it: it fails the first claim and
// the first report, then hands out one task, then has nothing.
type fake struct {
	mu       sync.Mutex
	claims   int
	reports  []api.ReportRequest
	reported chan struct{}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	user, password, _ := r.BasicAuth()
	body, err := io.ReadAll(r.Body)
	answer := api.Envelope{Code: http.StatusOK, Message: "success"}
	switch {
	case err != nil || user != "admin" || password != "secret":
		answer = api.Envelope{Code: http.StatusUnauthorized, Message: "no"}
	case r.URL.Path == "/api/v1/sms/tasks/pending":
		if f.claims++; f.claims == 1 {
			answer = api.Envelope{Code: http.StatusServiceUnavailable, Message: "busy", Error: "server_busy"}
		} else if f.claims == 2 {
			answer.Data = []api.ClaimedTask{{TaskID: "t", PhoneNumber: "13800138000", Content: "hi", ClaimID: 7}}
		} else {
			answer.Data = []api.ClaimedTask{}
		}
	case r.URL.Path == "/api/v1/sms/report":
		var report api.ReportRequest
		if json.Unmarshal(body, &report) != nil {
			answer = api.Envelope{Code: http.StatusBadRequest, Message: "bad"}
			break
		}
		if f.reports = append(f.reports, report); len(f.reports) == 1 {
			answer = api.Envelope{Code: http.StatusServiceUnavailable, Message: "busy", Error: "server_busy"}
			break
		}
		answer.Data = api.ReportResponse{TaskID: report.TaskID}
		close(f.reported)
	default:
		answer = api.Envelope{Code: http.StatusNotFound, Message: r.URL.Path}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.Code)
	_ = json.NewEncoder(w).Encode(answer)
}

func TestTheDemoSenderRetriesAndNeverHurries(t *testing.T) {
	t.Parallel()
	server := &fake{reported: make(chan struct{})}
	door := httptest.NewServer(server)
	defer door.Close()
	out := &lines{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(ended)
		demoSender{api.NewClient(door.URL, "admin", "secret"), out}.run(ctx)
	}()
	select {
	case <-server.reported:
	case <-time.After(time.Minute):
		require.Fail(t, "nothing was reported", out.String())
	}
	require.Eventually(t, func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.claims >= 4
	}, time.Minute, 10*time.Millisecond)
	stop()
	<-ended

	server.mu.Lock()
	defer server.mu.Unlock()
	status := succeeded
	want := api.ReportRequest{TaskID: "t", AppID: demoApp, ClaimID: 7, Status: &status}
	require.Equal(t, []api.ReportRequest{want, want}, server.reports)
	require.Equal(t, 1, strings.Count(out.String(), "sent to 138****8000: hi\n"))
	require.Contains(t, out.String(), "again in 500ms")
	require.LessOrEqual(t, server.claims, 3+int(time.Since(begun)/firstPause))
}
