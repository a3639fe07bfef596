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

// testService is a service without a socket, so that tests can use synctest. It records which rules a sender
// violates.
type testService struct {
	mu      sync.Mutex
	work    chan struct{} // closed and replaced when tasks are submitted
	pending []string
	live    map[string]*lease
	claims  api.ID
	claimed map[string]int
	reports []api.ReportRequest
	broken  []string // rules that were violated

	// refuse returns the status with which a call fails without effect, or 0. call is claim, mark, extend or
	// report.
	refuse func(call, task string) (status int)
}

type lease struct {
	claim api.ID
	until time.Time
	sends bool
}

func newTestService(tasks ...string) *testService {
	d := &testService{live: map[string]*lease{}, claimed: map[string]int{}, work: make(chan struct{}), refuse: func(string, string) int { return 0 }}
	d.submit(tasks...)
	return d
}

func (d *testService) submit(tasks ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = append(d.pending, tasks...)
	if len(d.pending) > 0 {
		close(d.work)
		d.work = make(chan struct{})
	}
}

// setRefusal sets which calls fail.
func (d *testService) setRefusal(rule func(call, task string) (status int)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = rule
}

// refuseCalls lets all calls of one kind fail, and no others.
func (d *testService) refuseCalls(kind string, status int) {
	d.setRefusal(func(call, _ string) int {
		if call == kind {
			return status
		}
		return 0
	})
}

// client returns a client that calls the service without a network.
func (d *testService) client() *api.Client {
	return &api.Client{BaseURL: "http://service", User: "u", Password: "p", HTTP: &http.Client{Transport: d}, Tries: 1}
}

// RoundTrip implements http.RoundTripper.
func (d *testService) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// ServeHTTP implements http.Handler.
func (d *testService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	response := api.Envelope{Code: http.StatusOK, Message: "success"}
	var status int
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/sms/"); path {
	case "tasks/pending":
		response.Data, status = d.claim(r, decode[api.ClaimRequest](raw))
	case "report/batch":
		response.Data, status = d.report(decode[api.ReportBatchRequest](raw))
	default:
		task := strings.TrimSuffix(strings.TrimPrefix(path, "tasks/"), "/extend")
		response.Data, status = d.extend(task, decode[api.ExtendRequest](raw))
	}
	if status != 0 {
		response = api.Envelope{Code: status, Error: errorCode(status), Message: "no"}
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

func (d *testService) claim(r *http.Request, req api.ClaimRequest) (any, int) {
	timeout := time.After(time.Duration(*req.Wait) * time.Second)
	for {
		d.mu.Lock()
		if status := d.refuse("claim", ""); status != 0 {
			d.mu.Unlock()
			return nil, status
		}
		if tasks := d.claimPending(req); len(tasks) > 0 {
			d.mu.Unlock()
			return tasks, 0
		}
		work := d.work
		d.mu.Unlock()
		select {
		case <-work:
		case <-timeout:
			return []api.ClaimedTask{}, 0
		case <-r.Context().Done():
			return nil, http.StatusServiceUnavailable
		}
	}
}

func (d *testService) claimPending(req api.ClaimRequest) []api.ClaimedTask {
	if !req.MarksSending {
		d.broken = append(d.broken, "a claim without marks_sending")
	}
	d.claims++
	var tasks []api.ClaimedTask
	for len(d.pending) > 0 && len(tasks) < *req.Limit {
		id := d.pending[0]
		d.pending = d.pending[1:]
		until := time.Now().Add(time.Duration(*req.LeaseSeconds) * time.Second)
		d.live[id] = &lease{claim: d.claims, until: until}
		d.claimed[id]++
		tasks = append(tasks, api.ClaimedTask{TaskID: id, PhoneNumber: "13800138000", Content: "to " + id, ClaimID: d.claims, LeaseUntil: until})
	}
	return tasks
}

func (d *testService) extend(task string, req api.ExtendRequest) (any, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	call := "extend"
	if req.Sending {
		call = "mark"
	}
	if status := d.refuse(call, task); status != 0 {
		return nil, status
	}
	l := d.live[task]
	if l == nil || l.claim != req.ClaimID || time.Now().After(l.until) {
		return nil, http.StatusConflict
	}
	l.until = time.Now().Add(time.Duration(*req.LeaseSeconds) * time.Second)
	l.sends = l.sends || req.Sending
	return api.ExtendResponse{TaskID: task, ClaimID: l.claim, LeaseUntil: l.until, Sending: l.sends}, 0
}

func (d *testService) report(req api.ReportBatchRequest) (any, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if status := d.refuse("report", ""); status != 0 {
		return nil, status
	}
	response := api.BatchResponse{}
	for _, raw := range req.Items {
		r := decode[api.ReportRequest](raw)
		item := api.BatchItem{Code: http.StatusOK, Message: "success"}
		if status := d.refuse("report", r.TaskID); status != 0 {
			item = api.BatchItem{Code: status, Error: errorCode(status), Message: "no"}
		} else {
			d.settle(r)
		}
		response.Items = append(response.Items, item)
	}
	return response, 0
}

func (d *testService) settle(r api.ReportRequest) {
	d.reports = append(d.reports, r)
	if l := d.live[r.TaskID]; l != nil && l.claim == r.ClaimID {
		if time.Now().After(l.until) {
			d.broken = append(d.broken, "the lease of "+r.TaskID+" ended before its report")
		}
		delete(d.live, r.TaskID)
	}
}

// checkSend records a violation if the task must not be sent.
func (d *testService) checkSend(task string, claim api.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.live[task]
	if l == nil || l.claim != claim || !l.sends || time.Now().After(l.until) {
		d.broken = append(d.broken, fmt.Sprintf("%s was sent without a marked claim", task))
	}
}

// outcomes returns the reported outcomes by task: a status, "3 retry", released or unknown.
func (d *testService) outcomes() map[string][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	outcomes := map[string][]string{}
	for _, r := range d.reports {
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

func (d *testService) violations() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.broken)
}

func (d *testService) claimedCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live)
}
