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

// desk is the service as a sender sees it, without a socket, so that time can
// be made up. It watches over the rules that a sender must keep.
type desk struct {
	mu      sync.Mutex
	work    chan struct{} // closed when there is some
	pending []string
	live    map[string]*lease
	claims  api.ID
	claimed map[string]int
	reports []api.ReportRequest
	wrong   []string // rules that were broken

	// refuse makes a call fail before it has an effect: 0 = do not. word is claim,
	// mark, extend or report.
	refuse func(word, task string) (status int)
}

type lease struct {
	claim api.ID
	until time.Time
	sends bool
}

func newDesk(tasks ...string) *desk {
	d := &desk{live: map[string]*lease{}, claimed: map[string]int{}, work: make(chan struct{}), refuse: func(string, string) int { return 0 }}
	d.submit(tasks...)
	return d
}

func (d *desk) submit(tasks ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = append(d.pending, tasks...)
	if len(d.pending) > 0 {
		close(d.work)
		d.work = make(chan struct{})
	}
}

// refusing sets what fails from now on.
func (d *desk) refusing(rule func(word, task string) (status int)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = rule
}

func never(string, string) int { return 0 }

// client reaches the desk without a network.
func (d *desk) client() *api.Client {
	return &api.Client{BaseURL: "http://desk", User: "u", Password: "p", HTTP: &http.Client{Transport: d}, Tries: 1}
}

// RoundTrip answers a call, unless its ctx ends first.
func (d *desk) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// ServeHTTP answers a call.
func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	answer := api.Envelope{Code: http.StatusOK, Message: "success"}
	var status int
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/sms/"); path {
	case "tasks/pending":
		answer.Data, status = d.claim(r, decode[api.ClaimRequest](raw))
	case "report/batch":
		answer.Data, status = d.report(decode[api.ReportBatchRequest](raw))
	default:
		task := strings.TrimSuffix(strings.TrimPrefix(path, "tasks/"), "/extend")
		answer.Data, status = d.extend(task, decode[api.ExtendRequest](raw))
	}
	if status != 0 {
		answer = api.Envelope{Code: status, Error: wordOf(status), Message: "no"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.Code)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		panic(err)
	}
}

func decode[T any](raw []byte) (v T) {
	if err := json.Unmarshal(raw, &v); err != nil {
		panic(err)
	}
	return v
}

func wordOf(status int) string {
	return map[int]string{400: "invalid_request", 404: "not_found", 409: "stale_claim", 500: "internal", 503: "server_busy"}[status]
}

func (d *desk) claim(r *http.Request, req api.ClaimRequest) (any, int) {
	patience := time.After(time.Duration(*req.Wait) * time.Second)
	for {
		d.mu.Lock()
		if status := d.refuse("claim", ""); status != 0 {
			d.mu.Unlock()
			return nil, status
		}
		if tasks := d.hand(req); len(tasks) > 0 {
			d.mu.Unlock()
			return tasks, 0
		}
		work := d.work
		d.mu.Unlock()
		select {
		case <-work:
		case <-patience:
			return []api.ClaimedTask{}, 0
		case <-r.Context().Done():
			return nil, http.StatusServiceUnavailable
		}
	}
}

func (d *desk) hand(req api.ClaimRequest) []api.ClaimedTask {
	if !req.MarksSending {
		d.wrong = append(d.wrong, "a claim does not promise to mark")
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

func (d *desk) extend(task string, req api.ExtendRequest) (any, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	word := "extend"
	if req.Sending {
		word = "mark"
	}
	if status := d.refuse(word, task); status != 0 {
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

func (d *desk) report(req api.ReportBatchRequest) (any, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if status := d.refuse("report", ""); status != 0 {
		return nil, status
	}
	answer := api.BatchResponse{}
	for _, raw := range req.Items {
		r := decode[api.ReportRequest](raw)
		item := api.BatchItem{Code: http.StatusOK, Message: "success"}
		if status := d.refuse("report", r.TaskID); status != 0 {
			item = api.BatchItem{Code: status, Error: wordOf(status), Message: "no"}
		} else {
			d.settle(r)
		}
		answer.Items = append(answer.Items, item)
	}
	return answer, 0
}

func (d *desk) settle(r api.ReportRequest) {
	d.reports = append(d.reports, r)
	if l := d.live[r.TaskID]; l != nil && l.claim == r.ClaimID {
		if time.Now().After(l.until) {
			d.wrong = append(d.wrong, "the lease of "+r.TaskID+" ran out before its report")
		}
		delete(d.live, r.TaskID)
	}
}

// sendMay notes a send that the rules forbid.
func (d *desk) sendMay(task string, claim api.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.live[task]
	if l == nil || l.claim != claim || !l.sends || time.Now().After(l.until) {
		d.wrong = append(d.wrong, fmt.Sprintf("%s was sent without a marked claim", task))
	}
}

// told gives what was reported so far, by task.
func (d *desk) told() map[string][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := map[string][]string{}
	for _, r := range d.reports {
		word := r.Outcome
		if r.Status != nil {
			word = fmt.Sprintf("%d", *r.Status)
		}
		if r.ShouldRetry {
			word += " retry"
		}
		told[r.TaskID] = append(told[r.TaskID], word)
	}
	return told
}

func (d *desk) broken() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.wrong)
}

func (d *desk) inHand() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live)
}
