package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) ClaimAs(t *testing.T, app string, limit int) []tasks.Claimed {
	t.Helper()
	return db.Claim(t, func(r *tasks.ClaimRequest) { r.AppID, r.Limit = app, limit })
}

func (db *DB) MustReport(t *testing.T, r task.Report) tasks.Reported {
	t.Helper()
	out, err := db.Report(r)
	require.NoError(t, err)
	return out
}

// Report reports as a sender app does, in a batch of one.
func (db *DB) Report(r task.Report) (tasks.Reported, error) {
	outs, errs := db.Tasks.Report([]*tasks.Report{Report(r)})
	return outs[0], errs[0]
}

func (db *DB) MustSubmit(t *testing.T, subs ...*tasks.Submission) []tasks.Submitted {
	t.Helper()
	outs, errs := db.Tasks.Submit(subs)
	for _, err := range errs {
		require.NoError(t, err)
	}
	return outs
}

func (db *DB) MustTask(t *testing.T, id task.ID) tasks.Detail {
	t.Helper()
	d, err := db.Tasks.ByID(t.Context(), id)
	require.NoError(t, err)
	return d
}

// Submission returns a submission without a key or a send time; change edits it.
func Submission(change ...func(*tasks.Submission)) *tasks.Submission {
	s := &tasks.Submission{
		ID: task.NewID(), Queue: task.DefaultQueue, Priority: task.DefaultPriority, MaxRetries: 3,
		Phone: "13800138000", Draft: task.Draft{Content: "hello"}, RequestID: "r", Request: []byte(`{"phone_number":"13800138000"}`),
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func InQueue(queue string) func(*tasks.Submission) {
	return func(s *tasks.Submission) { s.Queue = queue }
}

// NoContent makes a submission use the default content of its phone number.
func NoContent(s *tasks.Submission) { s.Draft = task.Draft{} }

func FromQueue(queue string) func(*tasks.ClaimRequest) {
	return func(r *tasks.ClaimRequest) { r.Queue = queue }
}

// Report returns r with the request body {}, which the store logs.
func Report(r task.Report) *tasks.Report { return &tasks.Report{Report: r, Request: []byte(`{}`)} }

// Claim claims up to 10 tasks of the default queue; change edits the request.
func (db *DB) Claim(t *testing.T, change ...func(*tasks.ClaimRequest)) []tasks.Claimed {
	t.Helper()
	req := tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: "app", Limit: 10, Lease: time.Minute, Request: []byte(`{}`)}
	for _, c := range change {
		c(&req)
	}
	claimed, _, err := db.Tasks.Claim(t.Context(), req)
	require.NoError(t, err)
	return claimed
}

// ExpireLeases makes every lease expire.
func (db *DB) ExpireLeases(t *testing.T) {
	t.Helper()
	db.Exec(t, `update task_live set due_at = now() - interval '1 second' where state = 2`)
}

// RetryBusy calls do again, without a pause, as long as do returns a task.Error with RetryAfter.
func RetryBusy(do func() error) error {
	for {
		err := do()
		var refusal *task.Error
		if !errors.As(err, &refusal) || refusal.RetryAfter == 0 {
			return err
		}
	}
}

// Keyed gives a submission the idempotency key named key, and body as its content, with the fingerprint of body.
func Keyed(key, body string) func(*tasks.Submission) {
	return func(s *tasks.Submission) {
		hash := task.KeyHash(s.CallerID, "sms", key)
		s.Key, s.Draft.Content = &hash, body
		s.Fingerprint, _ = task.Fingerprint(body)
	}
}

func (db *DB) MustStatistics(t *testing.T) tasks.Statistics {
	t.Helper()
	s, err := db.Tasks.Statistics(t.Context())
	require.NoError(t, err)
	return s
}

// InsertClosedDaySQL closes the day $1 with the totals $2 of succeeded SMS and $3 of failed SMS.
const InsertClosedDaySQL = `insert into task_totals (day, succeeded, failed, subscribe_succeeded, subscribe_failed) values ($1, $2, $3, 0, 0)`
