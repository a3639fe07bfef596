package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
)

const (
	pollers  = 1000
	pollWait = 25 // seconds; less than bench.CallTimeout
)

// idleSQL returns true if the functions have connections to this database as sendonce_hot, and all of these have been idle for
// the last 300 ms.
const idleSQL = `
select coalesce(bool_and(state = 'idle') and max(state_change) < clock_timestamp() - interval '300 ms', false)
from pg_stat_activity where datname = current_database() and usename = 'sendonce_hot'`

// measureWake measures the time from a submission to the response of one of many waiting claims.
func measureWake(ctx context.Context, o options, s *bench.Stack, table *bench.Table) (string, error) {
	results, err := startPolls(ctx, s)
	if err != nil {
		return "", err
	}
	submit, err := s.Connect(ctx, "submit")
	if err != nil {
		return "", err
	}
	defer submit.Close()
	if err := s.Wait(ctx, idleSQL); err != nil {
		return "", err
	}
	t, woken := tasks{bench.NewTasks(1 << 32)}, 0 // other keys than those of measureTasks
	err = table.Rounds(o.rounds, func(table *bench.Table) error {
		r, err := bench.Sample(ctx, o.duration, "submit", func() (took, baseline time.Duration, err error) {
			startedAt := time.Now()
			id, err := t.SubmitOne(submit, bench.WithKey)
			baseline = time.Since(startedAt)
			if err != nil {
				return 0, 0, err
			}
			select {
			case got := <-results:
				if got.err == nil && got.id != id {
					got.err = fmt.Errorf("task %s was claimed, but %s was submitted", got.id, id)
				}
				woken++
				return time.Since(startedAt), baseline, got.err
			case <-time.After(bench.CallTimeout):
				return 0, 0, errors.New("no waiting claim got a response")
			}
		})
		r.Name, r.Connections = "wake a waiting claim", pollers
		table.Add(r)
		return err
	})
	return fmt.Sprintf("Checked: %d waiting claims got a response, each with the task that had just been submitted.", woken), err
}

// pollResult is a task that a poll returned, or the error that ended the poll.
type pollResult struct {
	id  string
	err error
}

// startPolls starts a process that serves the function claim, and keeps 1000 claims (pollers) waiting there until the
// process ends.
func startPolls(ctx context.Context, s *bench.Stack) (<-chan pollResult, error) {
	address, err := s.Start(ctx, "claim")
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/api/v1/sms/tasks/pending?app_id=bench&wait=%d", pollWait)
	results := make(chan pollResult, 2*pollers) // has room for the errors of all polls at the end, which nobody reads
	for range pollers {
		c, err := bench.Dial(address)
		if err != nil {
			return nil, err
		}
		go func() {
			defer c.Close()
			for {
				response, err := c.Post(path, nil, nil)
				if err != nil {
					results <- pollResult{err: err}
					return
				}
				for _, task := range bench.ParseClaimed(response) {
					results <- pollResult{id: task.ID}
				}
			}
		}()
	}
	return results, nil
}
