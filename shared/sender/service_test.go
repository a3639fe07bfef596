package sender_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// testService is a fake service. Its client needs no socket, so that tests can use synctest. It records which rules a
// sender violates.
type testService struct {
	mu        sync.Mutex
	work      chan struct{} // closed and replaced when tasks are submitted
	pending   []string
	live      map[string]*lease // of claimed tasks without a report
	lastClaim api.ID
	reports   []api.ReportRequest // the accepted ones
	violated  []string            // the rules of the protocol that the sender violated

	// refuse returns the status with which a call fails without effect; 0 = the call is not refused. call is claim,
	// mark, extend or report. task is "" for a claim and for a whole batch of reports.
	refuse func(call, task string) (status int)

	retryAfter string // the header Retry-After of refused calls
}

type lease struct {
	claim  api.ID
	until  time.Time
	marked bool // as sending
}

func newTestService(tasks ...string) *testService {
	s := &testService{live: map[string]*lease{}, work: make(chan struct{}), refuse: func(string, string) int { return 0 }}
	s.submit(tasks...)
	return s
}

func (s *testService) submit(tasks ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, tasks...)
	close(s.work)
	s.work = make(chan struct{})
}

// setRefusal sets s.refuse.
func (s *testService) setRefusal(rule func(call, task string) (status int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = rule
}

// refuseCalls makes all calls of one kind fail with a status, and no other calls. With the kind "" no call fails.
func (s *testService) refuseCalls(kind string, status int) {
	s.setRefusal(func(call, _ string) int {
		if call == kind {
			return status
		}
		return 0
	})
}

// client returns a client that calls the service without a network.
func (s *testService) client() *api.Client {
	return &api.Client{BaseURL: "http://service", User: "u", Password: "p", HTTP: &http.Client{Transport: s}, Tries: 1}
}

// RoundTrip implements http.RoundTripper.
func (s *testService) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// ServeHTTP implements http.Handler.
func (s *testService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	response := api.Envelope{Code: http.StatusOK, Message: "success"}
	var status int
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/sms/"); path {
	case "tasks/pending":
		response.Data, status = s.claim(r, decode[api.ClaimRequest](raw))
	case "report/batch":
		response.Data, status = s.report(decode[api.ReportBatchRequest](raw))
	default:
		task := strings.TrimSuffix(strings.TrimPrefix(path, "tasks/"), "/extend")
		response.Data, status = s.extend(task, decode[api.ExtendRequest](raw))
	}
	if status != 0 {
		response = api.Envelope{Code: status, Error: errorCode(status), Message: "no"}
		w.Header().Set("Retry-After", s.retryAfter)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(response.Code)
	if err := json.NewEncoder(w).Encode(response); err != nil {
		panic(err)
	}
}

func decode[T any](raw []byte) (v T) {
	if err := json.Unmarshal(raw, &v); err != nil {
		panic(err)
	}
	return v
}

func errorCode(status int) string {
	return map[int]string{400: "invalid_request", 404: "not_found", 409: "stale_claim", 500: "internal", 503: "server_busy"}[status]
}

func (s *testService) claim(r *http.Request, req api.ClaimRequest) (any, int) {
	timeout := time.After(time.Duration(*req.Wait) * time.Second)
	for {
		s.mu.Lock()
		if status := s.refuse("claim", ""); status != 0 {
			s.mu.Unlock()
			return nil, status
		}
		if tasks := s.claimPending(req); len(tasks) > 0 {
			s.mu.Unlock()
			return tasks, 0
		}
		work := s.work
		s.mu.Unlock()
		select {
		case <-work:
		case <-timeout:
			return []api.ClaimedTask{}, 0
		case <-r.Context().Done():
			return nil, http.StatusServiceUnavailable
		}
	}
}

func (s *testService) claimPending(req api.ClaimRequest) []api.ClaimedTask {
	if !req.MarksSending {
		s.violated = append(s.violated, "a claim without marks_sending")
	}
	s.lastClaim++
	var tasks []api.ClaimedTask
	for len(s.pending) > 0 && len(tasks) < *req.Limit {
		id := s.pending[0]
		s.pending = s.pending[1:]
		until := time.Now().Add(time.Duration(*req.LeaseSeconds) * time.Second)
		s.live[id] = &lease{claim: s.lastClaim, until: until}
		tasks = append(tasks, api.ClaimedTask{TaskID: id, PhoneNumber: "13800138000", Content: "to " + id, ClaimID: s.lastClaim, LeaseUntil: until})
	}
	return tasks
}

func (s *testService) extend(task string, req api.ExtendRequest) (any, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := "extend"
	if req.Sending {
		call = "mark"
	}
	if status := s.refuse(call, task); status != 0 {
		return nil, status
	}
	l := s.live[task]
	if l == nil || l.claim != req.ClaimID || time.Now().After(l.until) {
		return nil, http.StatusConflict
	}
	l.until = time.Now().Add(time.Duration(*req.LeaseSeconds) * time.Second)
	l.marked = l.marked || req.Sending
	return api.ExtendResponse{TaskID: task, ClaimID: l.claim, LeaseUntil: l.until, Sending: l.marked}, 0
}

func (s *testService) report(req api.ReportBatchRequest) (any, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if status := s.refuse("report", ""); status != 0 {
		return nil, status
	}
	response := api.BatchResponse{}
	for _, raw := range req.Items {
		r := decode[api.ReportRequest](raw)
		item := api.BatchItem{Code: http.StatusOK, Message: "success"}
		if status := s.refuse("report", r.TaskID); status != 0 {
			item = api.BatchItem{Code: status, Error: errorCode(status), Message: "no"}
		} else {
			s.settle(r)
		}
		response.Items = append(response.Items, item)
	}
	return response, 0
}

func (s *testService) settle(r api.ReportRequest) {
	s.reports = append(s.reports, r)
	if l := s.live[r.TaskID]; l != nil && l.claim == r.ClaimID {
		if time.Now().After(l.until) {
			s.violated = append(s.violated, "the lease of "+r.TaskID+" ended before its report")
		}
		delete(s.live, r.TaskID)
	}
}

// checkSend records a violation unless the task may be sent now: its claim is live and marked as sending.
func (s *testService) checkSend(task string, claim api.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.live[task]
	if l == nil || l.claim != claim || !l.marked || time.Now().After(l.until) {
		s.violated = append(s.violated, fmt.Sprintf("%s was sent without a live claim that is marked as sending", task))
	}
}

// outcomes returns the reported outcomes by task: a status, "3 retry", released or unknown.
func (s *testService) outcomes() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := map[string][]string{}
	for _, r := range s.reports {
		outcome := r.Outcome
		if r.Status != nil {
			outcome = fmt.Sprintf("%d", *r.Status)
		}
		if r.ShouldRetry {
			outcome += " retry"
		}
		outcomes[r.TaskID] = append(outcomes[r.TaskID], outcome)
	}
	return outcomes
}

func (s *testService) violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violated)
}

// claimedCount returns the number of claimed tasks without a report.
func (s *testService) claimedCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}
