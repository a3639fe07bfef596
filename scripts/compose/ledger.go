package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"slices"
	"sync"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// ledger adds to load.Ledger the webhooks, the subscribe messages, and the submissions of tasks, which resubmit repeats at
// the end.
type ledger struct {
	*load.Ledger

	mu        sync.Mutex
	failures  []error                    // calls that failed after all repeats, and wrong responses
	requests  map[string]api.SendRequest // submissions of tasks by idempotency key
	subscribe map[string]bool            // subscribe messages by data
	events    map[string]int             // number of webhooks by task; each subscribe message also has a task
}

func newLedger() *ledger {
	return &ledger{Ledger: load.NewLedger(), requests: map[string]api.SendRequest{}, subscribe: map[string]bool{}, events: map[string]int{}}
}

func (l *ledger) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, err)
}

// firstFailures joins the first ten failures.
func (l *ledger) firstFailures() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.failures[:min(len(l.failures), 10)]...)
}

func (l *ledger) submitted(r api.SendRequest, task string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests[r.IdempotencyKey] = r
	return l.Submitted(r.IdempotencyKey, task)
}

func (l *ledger) eventReceived(task string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events[task]++
}

func (l *ledger) subscribed(data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribe[data] = true
}

// change compares two statistics: how many tasks were live before, how many are live now, and how many
// more have succeeded, have failed, or are held now. A live task is neither final nor held.
type change struct{ wereLive, live, succeeded, failed, held int64 }

func changeOf(before, now api.TaskStatistics) change {
	return change{
		wereLive:  liveTasks(before),
		live:      liveTasks(now),
		succeeded: now.SucceededTasks - before.SucceededTasks,
		failed:    now.FailedTasks - before.FailedTasks,
		held:      now.HeldTasks - before.HeldTasks,
	}
}

func liveTasks(s api.TaskStatistics) int64 {
	return s.ScheduledTasks + s.PendingNewTasks + s.PendingRetryTasks + s.ProcessingTasks - s.HeldTasks
}

// checkDone returns an error until everything that was submitted is done. If a process is killed while it sends a
// subscribe message, it is unknown whether WeChat delivered the message: the message becomes held when its lease ends,
// perhaps only during the next traffic. So with kills any number of subscribe messages may be held or live. Without kills
// a subscribe message may become held only if it was live before the traffic.
func (l *ledger) checkDone(before, now api.StatisticsResponse, kills bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	tasks, subscribe := changeOf(before.TaskStatistics, now.TaskStatistics), changeOf(before.Subscribe, now.Subscribe)
	if tasks.live+subscribe.live > 0 && !kills || tasks.live > 0 {
		return fmt.Errorf("%d tasks and %d subscribe messages are not final", tasks.live, subscribe.live)
	}
	if tasks.failed+subscribe.failed > 0 || tasks.held > 0 || subscribe.held > subscribe.wereLive && !kills {
		return fmt.Errorf("%d tasks and %d subscribe messages have failed; %d tasks and %d subscribe messages are held", tasks.failed, subscribe.failed, tasks.held, subscribe.held)
	}
	ids := l.TaskIDs()
	if tasks.succeeded != int64(len(ids)) {
		return fmt.Errorf("%d of %d tasks have succeeded", tasks.succeeded, len(ids))
	}
	if subscribe.succeeded+subscribe.held+subscribe.live != int64(len(l.subscribe))+subscribe.wereLive {
		return fmt.Errorf("%d of %d subscribe messages have succeeded, %d are held", subscribe.succeeded, len(l.subscribe), subscribe.held)
	}
	if _, _, reported := l.Tasks(); reported < len(ids) {
		return fmt.Errorf("%d of %d tasks were reported", reported, len(ids))
	}
	for _, task := range ids {
		if l.events[task] == 0 {
			return fmt.Errorf("there was no webhook for the end of task %s", task)
		}
	}
	if len(l.events) < len(ids)+int(subscribe.succeeded) {
		return fmt.Errorf("there were webhooks for the ends of %d of %d tasks", len(l.events), len(ids)+int(subscribe.succeeded))
	}
	return l.CheckReceived()
}

// resubmit submits every task again. It returns an error if a response has not the task of the first submission, or is not
// marked as a replay.
func (l *ledger) resubmit(ctx context.Context, client *api.Client) error {
	ids := l.TaskIDs()
	for batch := range slices.Chunk(slices.Collect(maps.Values(l.requests)), 500) {
		results, err := client.SendBatch(ctx, batch)
		if err != nil {
			return fmt.Errorf("repeat every submission: %w", err)
		}
		for i, r := range results {
			if key := batch[i].IdempotencyKey; r.Err != nil || !r.Replayed || r.Data.TaskID != ids[key] {
				return fmt.Errorf("%s returned %s first and now %q, replayed: %v (%v)", key, ids[key], r.Data.TaskID, r.Replayed, r.Err)
			}
		}
	}
	return nil
}

// checkOnce returns an error for each task that was not claimed and reported exactly once, each message that was not
// received exactly once, and each subscribe message that was not delivered exactly once; with kills, a subscribe message
// may also be missing. delivered counts the deliveries of WeChat by data.
func (l *ledger) checkOnce(delivered map[string]int, kills bool) error {
	wrong := []error{l.CheckTasksDone(), l.CheckReceivedOnce()}
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := 0
	for data := range l.subscribe {
		if n := delivered[data]; n > 1 || n == 0 && !kills {
			wrong = append(wrong, fmt.Errorf("%s was delivered %d times", data, n))
		} else if n == 0 {
			missing++
		}
	}
	if err := errors.Join(wrong[:min(len(wrong), 10)]...); err != nil {
		return err
	}
	repeated := 0
	for _, n := range l.events {
		repeated += n - 1
	}
	tasks, _, _ := l.Tasks()
	messages, _, _ := l.Messages()
	log.Printf("     %d tasks, each claimed and reported once; %d messages, each received once; %d subscribe messages, none delivered twice, %d not delivered; %d tasks with a webhook, %d webhooks repeated",
		tasks, messages, len(l.subscribe), missing, len(l.events), repeated)
	return nil
}
