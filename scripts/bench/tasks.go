package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// Tasks has the calls that submit, claim and report tasks, and records the responses in Ledger.
type Tasks struct {
	Ledger *load.Ledger
	number atomic.Int64 // of the newest submission

	mu      sync.Mutex
	claimed []Claimed // tasks that are claimed and not yet reported
}

// NewTasks returns a Tasks that numbers its submissions from first. Numbers must not repeat in one database.
func NewTasks(first int64) *Tasks {
	t := &Tasks{Ledger: load.NewLedger()}
	t.number.Store(first - 1)
	return t
}

// Claimed is a task as a claim returned it.
type Claimed struct{ ID, ClaimID string }

// WithKey and WithoutKey say whether a submission has an idempotency key.
const (
	WithKey    = true
	WithoutKey = false
)

// Waiting returns how many tasks were submitted and not yet claimed.
func (t *Tasks) Waiting() int {
	submitted, claimed, _ := t.Ledger.Tasks()
	return submitted - claimed
}

// Unreported returns how many tasks were claimed and not yet reported.
func (t *Tasks) Unreported() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.claimed)
}

// Submit returns a call that submits one task, WithKey or WithoutKey.
func (t *Tasks) Submit(withKey bool) func(*Client, int) (int, error) {
	return func(c *Client, _ int) (int, error) {
		if _, err := t.SubmitOne(c, withKey); err != nil {
			return 0, err
		}
		return 1, nil
	}
}

// SubmitOne submits one task and returns its id.
func (t *Tasks) SubmitOne(c *Client, withKey bool) (id string, err error) {
	number := t.number.Add(1)
	var key []byte
	if withKey {
		key = appendKey(nil, number)
	}
	response, err := c.Post("/api/v1/sms/send", key, append(appendTask(make([]byte, 0, 96), number), '}'))
	if err != nil {
		return "", err
	}
	if id = JSONString(response, "task_id"); id == "" {
		return "", errors.New("the response to a submission has no task_id")
	}
	return id, t.Ledger.Submitted(string(appendKey(nil, number)), id)
}

// SubmitBatch submits n tasks in one call, each with an idempotency key.
func (t *Tasks) SubmitBatch(c *Client, n int) (int, error) {
	last := t.number.Add(int64(n))
	first := last - int64(n) + 1
	body := append(make([]byte, 0, n*128), `{"items":[`...)
	for number := first; number <= last; number++ {
		body = append(appendTask(body, number), `,"idempotency_key":"`...)
		body = append(appendKey(body, number), `"},`...)
	}
	body[len(body)-1] = ']'
	response, err := c.Post("/api/v1/sms/send/batch", nil, append(body, '}'))
	if err != nil {
		return 0, err
	}
	if accepted := bytes.Count(response, []byte(`"task_id":"`)); accepted != n {
		return 0, fmt.Errorf("%d of %d submissions in a batch were rejected", n-accepted, n)
	}
	for number := first; number <= last; number++ {
		_, response, _ = bytes.Cut(response, []byte(`"task_id":"`))
		if err := t.Ledger.Submitted(string(appendKey(nil, number)), string(response[:36])); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func appendKey(b []byte, number int64) []byte {
	return strconv.AppendInt(append(b, "bench-"...), number, 10)
}

// appendTask appends the JSON of a task to submit, without its last brace.
func appendTask(body []byte, number int64) []byte {
	body = append(body, `{"phone_number":"`...)
	body = strconv.AppendInt(body, 13_000_000_000+number%1_000_000_000, 10)
	return append(body, `","content":"Your verification code is 285713"`...)
}

// Claim claims up to n tasks. It is no error if there are none: concurrent claims may have locked all waiting tasks.
func (t *Tasks) Claim(c *Client, n int) (int, error) {
	response, err := c.Post("/api/v1/sms/tasks/pending?app_id=bench&limit="+strconv.Itoa(n), nil, nil)
	if err != nil {
		return 0, err
	}
	claimed := ParseClaimed(response)
	for _, task := range claimed {
		t.Ledger.Claimed(task.ID, task.ClaimID)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claimed = append(t.claimed, claimed...)
	return len(claimed), nil
}

// ParseClaimed returns the tasks in the response to a claim.
func ParseClaimed(response []byte) (claimed []Claimed) {
	for part := range bytes.SplitSeq(response, []byte(`{"task_id"`)) {
		if _, _, found := bytes.Cut(part, []byte(`"claim_id":`)); found {
			claimed = append(claimed, Claimed{ID: string(part[2:38]), ClaimID: JSONString(part, "claim_id")}) // part begins with :" and a UUID of 36 bytes
		}
	}
	return claimed
}

// Report reports the success of one claimed task, if there is one.
func (t *Tasks) Report(c *Client, _ int) (int, error) {
	batch := t.take(1)
	if len(batch) == 0 {
		return 0, nil
	}
	if _, err := c.Post("/api/v1/sms/report", nil, appendReport([]byte(`{"app_id":"bench",`), batch[0])); err != nil {
		t.putBack(batch)
		return 0, err
	}
	t.Ledger.Reported(batch[0].ID)
	return 1, nil
}

// ReportBatch reports the success of up to n claimed tasks in one call.
func (t *Tasks) ReportBatch(c *Client, n int) (int, error) {
	batch := t.take(n)
	if n = len(batch); n == 0 {
		return 0, nil
	}
	body := []byte(`{"app_id":"bench","items":[`)
	for i, task := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendReport(append(body, '{'), task)
	}
	response, err := c.Post("/api/v1/sms/report/batch", nil, append(body, "]}"...))
	if err != nil {
		t.putBack(batch)
		return 0, err
	}
	if accepted := bytes.Count(response, []byte(`{"code":200,`)) - 1; accepted != n { // the response itself has a code, too
		return 0, fmt.Errorf("%d of %d reports in a batch were rejected", n-accepted, n)
	}
	for _, task := range batch {
		t.Ledger.Reported(task.ID)
	}
	return n, nil
}

// ClaimAndReport claims up to n tasks, and then reports the success of the same number of claimed tasks in one call. Some
// of these may be tasks that another goroutine has claimed.
func (t *Tasks) ClaimAndReport(c *Client, n int) (int, error) {
	claimed, err := t.Claim(c, n)
	if err != nil || claimed == 0 {
		return 0, err
	}
	return t.ReportBatch(c, claimed)
}

func appendReport(body []byte, task Claimed) []byte {
	body = append(append(body, `"task_id":"`...), task.ID...)
	body = append(append(body, `","claim_id":"`...), task.ClaimID...)
	return append(body, `","status":2}`...) // 2 = sent
}

// take removes up to n tasks from the claimed ones and returns them.
func (t *Tasks) take(n int) []Claimed {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = min(n, len(t.claimed))
	batch := t.claimed[:n:n]
	t.claimed = t.claimed[n:]
	return batch
}

func (t *Tasks) putBack(batch []Claimed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claimed = append(t.claimed, batch...)
}

// Finish claims and reports the remaining tasks in batches of up to batchRows.
func (t *Tasks) Finish(ctx context.Context, address string, batchRows int) error {
	p := Phase{Name: "claim the rest", Connections: 4, Duration: time.Minute, Batch: batchRows, MaxRows: t.Waiting(), Call: t.Claim}
	claimed, err := p.Run(ctx, address)
	if err := errors.Join(err, claimed.Err()); err != nil {
		return err
	}
	p.Name, p.MaxRows, p.Call = "report the rest", t.Unreported(), t.ReportBatch
	reported, err := p.Run(ctx, address)
	if err := errors.Join(err, reported.Err()); err != nil {
		return err
	}
	if n := t.Waiting() + t.Unreported(); n > 0 {
		return fmt.Errorf("%d tasks were not claimed and reported within %v", n, p.Duration)
	}
	return nil
}
