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
)

// ledger holds what a load was answered, for a comparison with what the service did.
type ledger struct {
	mu        sync.Mutex
	failures  []error                    // calls that no repeat brought through, and answers that must not be
	requests  map[string]api.SendRequest // submissions by idempotency key
	tasks     map[string]string          // task ids by idempotency key
	claims    map[string]int             // by task
	reports   map[string]int             // by task
	messages  map[string]bool            // by data
	received  map[string]int             // messages by data
	subscribe map[string]bool            // subscribe messages by data
	events    map[string]int             // webhooks by task
}

func newLedger() ledger {
	return ledger{
		requests: map[string]api.SendRequest{}, tasks: map[string]string{}, claims: map[string]int{}, reports: map[string]int{},
		messages: map[string]bool{}, received: map[string]int{}, subscribe: map[string]bool{}, events: map[string]int{},
	}
}

func (l *ledger) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, err)
}

// failed joins the first failures.
func (l *ledger) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.failures[:min(len(l.failures), 10)]...)
}

// submitted fails if an earlier submission with the key was answered another task.
func (l *ledger) submitted(r api.SendRequest, task string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.tasks[r.IdempotencyKey]; before != "" && before != task {
		return fmt.Errorf("%s was answered %s and %s", r.IdempotencyKey, before, task)
	}
	l.requests[r.IdempotencyKey], l.tasks[r.IdempotencyKey] = r, task
	return nil
}

func (l *ledger) claimed(t api.ClaimedTask) { l.count(l.claims, t.TaskID) }

func (l *ledger) reported(task string) { l.count(l.reports, task) }

func (l *ledger) messageReceived(data string) { l.count(l.received, data) }

func (l *ledger) eventReceived(task string) { l.count(l.events, task) }

func (l *ledger) count(what map[string]int, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	what[key]++
}

func (l *ledger) messageSent(data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages[data] = true
}

func (l *ledger) subscribed(data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribe[data] = true
}

// numbers are the differences between the statistics before and after.
type numbers struct{ live, succeeded, failed, held int64 }

func since(before, now api.TaskStatistics) numbers {
	return numbers{
		live:      now.ScheduledTasks + now.PendingNewTasks + now.PendingRetryTasks + now.ProcessingTasks - now.HeldTasks,
		succeeded: now.SucceededTasks - before.SucceededTasks,
		failed:    now.FailedTasks - before.FailedTasks,
		held:      now.HeldTasks - before.HeldTasks,
	}
}

// done returns what has not arrived yet. A subscribe message whose sender was killed
// is held, as nobody knows whether WeChat delivered it: it may be missing.
func (l *ledger) done(before, now api.StatisticsResponse, kills bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	tasks, subscribe := since(before.TaskStatistics, now.TaskStatistics), since(before.Subscribe, now.Subscribe)
	if tasks.live+subscribe.live > 0 && !kills || tasks.live > 0 {
		return fmt.Errorf("%d tasks and %d subscribe messages are not final", tasks.live, subscribe.live)
	}
	if tasks.failed+subscribe.failed > 0 || tasks.held > 0 || subscribe.held > 0 && !kills {
		return fmt.Errorf("%d tasks and %d subscribe messages have failed, %d and %d are held", tasks.failed, subscribe.failed, tasks.held, subscribe.held)
	}
	if tasks.succeeded != int64(len(l.tasks)) {
		return fmt.Errorf("%d of %d tasks have succeeded", tasks.succeeded, len(l.tasks))
	}
	if subscribe.succeeded+subscribe.held+subscribe.live != int64(len(l.subscribe)) {
		return fmt.Errorf("%d of %d subscribe messages have succeeded, %d are held", subscribe.succeeded, len(l.subscribe), subscribe.held)
	}
	for _, task := range l.tasks {
		if l.reports[task] == 0 || l.events[task] == 0 {
			return fmt.Errorf("task %s was reported %d times, and its end came %d times by webhook", task, l.reports[task], l.events[task])
		}
	}
	if len(l.events) < len(l.tasks)+int(subscribe.succeeded) {
		return fmt.Errorf("the ends of %d of %d tasks came by webhook", len(l.events), len(l.tasks)+int(subscribe.succeeded))
	}
	for data := range l.messages {
		if l.received[data] == 0 {
			return fmt.Errorf("%s was not received", data)
		}
	}
	return nil
}

// resubmit submits everything once more: each key must still name its task.
func (l *ledger) resubmit(ctx context.Context, client *api.Client) error {
	for batch := range slices.Chunk(slices.Collect(maps.Values(l.requests)), 500) {
		results, err := client.SendBatch(ctx, batch)
		if err != nil {
			return fmt.Errorf("submit everything again: %w", err)
		}
		for i, r := range results {
			if key := batch[i].IdempotencyKey; r.Err != nil || !r.Replayed || r.Data.TaskID != l.tasks[key] {
				return fmt.Errorf("%s was answered %s and is now %q, a replay: %v (%v)", key, l.tasks[key], r.Data.TaskID, r.Replayed, r.Err)
			}
		}
	}
	return nil
}

// once returns what was claimed, reported, received or delivered twice.
// delivered counts what WeChat has delivered, by data.
func (l *ledger) once(delivered map[string]int, kills bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []error
	for key, task := range l.tasks {
		if l.claims[task] != 1 || l.reports[task] != 1 {
			wrong = append(wrong, fmt.Errorf("%s (%s) was claimed %d times and reported %d times", key, task, l.claims[task], l.reports[task]))
		}
	}
	for data := range l.messages {
		if l.received[data] != 1 {
			wrong = append(wrong, fmt.Errorf("%s was received %d times", data, l.received[data]))
		}
	}
	missing := 0
	for data := range l.subscribe {
		if n := delivered[data]; n > 1 || n == 0 && !kills {
			wrong = append(wrong, fmt.Errorf("%s was delivered %d times", data, n))
		} else if n == 0 {
			missing++
		}
	}
	repeated := 0
	for _, n := range l.events {
		repeated += n - 1
	}
	log.Printf("     %d tasks, each claimed and reported once; %d messages, each received once; %d subscribe messages, none delivered twice, %d not delivered; %d ends by webhook, %d of them again",
		len(l.tasks), len(l.messages), len(l.subscribe), missing, len(l.events), repeated)
	return errors.Join(wrong[:min(len(wrong), 10)]...)
}
