package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// books is what callers were told who go on whatever happens.
type books struct {
	t        *testing.T
	calls    load
	mu       sync.Mutex
	accepted map[string]bool
	claims   map[string][]int64 // by task
	reported map[string]bool
	failures int
}

// keepBooks has tasks submitted, claimed and reported all the time, each by a
// process of its own. Nothing is tried twice.
func keepBooks(t *testing.T, url string) *books {
	t.Helper()
	l := &books{t: t, accepted: map[string]bool{}, claims: map[string][]int64{}, reported: map[string]bool{}}
	l.calls = load{t: t, calls: map[string]int{}}
	l.calls.ctx, l.calls.stop = context.WithCancel(t.Context())
	client := func(function string) *api.Client {
		c := api.NewClient(address(t, sandbox.StartProcess(t, sandbox.Build(t, module+"functions", false), settings(url, "FUNCTION_TARGET="+function))), "admin", "secret")
		c.Tries = 1
		return c
	}
	submit, claim, report := client("submit"), client("claim"), client("report")
	ctx := context.WithoutCancel(t.Context())
	for range 4 {
		l.calls.keep("submit", func() error {
			sent, err := submit.Send(ctx, api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: api.NewKey()})
			return l.note(err, func() { l.accepted[sent.TaskID] = true })
		})
	}
	for range 2 {
		l.calls.keep("claim", func() error {
			two := 2
			tasks, err := claim.Claim(ctx, api.ClaimRequest{AppID: "app", Limit: &two})
			l.note(err, func() {
				for _, task := range tasks {
					l.claims[task.TaskID] = append(l.claims[task.TaskID], task.ClaimID)
				}
			})
			if err == nil && len(tasks) > 0 { // the second stays claimed
				status := 2
				_, err = report.Report(ctx, api.ReportRequest{TaskID: tasks[0].TaskID, AppID: "app", ClaimID: tasks[0].ClaimID, Status: &status})
				l.note(err, func() { l.reported[tasks[0].TaskID] = true })
			}
			return err
		})
	}
	t.Cleanup(l.close)
	return l
}

func (l *books) note(err error, told func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		told()
	} else {
		l.failures++
	}
	return err
}

// more waits until so many more submissions were accepted, tasks claimed and
// reports taken.
func (l *books) more(n int) {
	l.t.Helper()
	least := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return min(len(l.accepted), len(l.claims), len(l.reported))
	}
	before := least()
	require.Eventually(l.t, func() bool { return least() >= before+n }, patience, 5*time.Millisecond)
}

// failed waits until some more calls have failed.
func (l *books) failed(n int) {
	l.t.Helper()
	failures := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.failures
	}
	before := failures()
	require.Eventually(l.t, func() bool { return failures() >= before+n }, patience, 5*time.Millisecond)
}

// close ends the calls.
func (l *books) close() {
	l.calls.stop()
	l.calls.all.Wait()
}

// balance says that the database holds what callers were told.
func (l *books) balance(s *server) {
	l.t.Helper()
	l.close()
	for id := range l.accepted {
		require.Equal(l.t, 1, s.count(`select count(*) from tasks where id = $1`, id), "accepted %s", id)
	}
	for id, claims := range l.claims {
		require.Len(l.t, claims, 1, "%s was handed out twice within its lease", id)
	}
	for id := range l.reported {
		require.Equal(l.t, 1, s.count(`select count(*) from task_done where id = $1 and status = 2`, id), "reported %s", id)
	}
	for id, claims := range l.claims { // a report whose answer was lost may have been taken
		const held = `select (select count(*) from task_live where id = $1 and state = 2 and claim_id = $2) + (select count(*) from task_done where id = $1)`
		require.Equal(l.t, 1, s.count(held, id, claims[0]), "claimed %s", id)
	}
	l.t.Logf("%d accepted, %d claimed, %d reported, %d calls failed", len(l.accepted), len(l.claims), len(l.reported), l.failures)
}

func TestNothingAnsweredIsLostWhenThePrimaryIsKilledAndItsStandbyPromoted(t *testing.T) {
	t.Parallel()
	onlyWithFaults(t)
	pair, bin := sandbox.NewPair(t), sandbox.Build(t, module+"functions", false)
	url := pair.URL("postgres")
	migrate := sandbox.StartProcess(t, bin, settings(url), "migrate")
	exited(t, migrate)
	require.Zero(t, migrate.ExitCode(), migrate.Output())
	l := keepBooks(t, url)
	l.more(50)
	pair.KillPrimary()
	l.failed(5)
	pair.Promote()
	promoted := time.Now()
	l.more(1)
	t.Logf("all functions answer again %v after the promotion", time.Since(promoted).Round(time.Millisecond))
	l.more(50)
	l.balance((&server{t: t}).connect(url))
}
