package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"slices"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// outstanding says what has not arrived yet.
func (l *load) outstanding(wechat *sandbox.WeChat) error {
	delivered := len(wechat.Delivered())
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.reported) < len(l.tasks) || len(l.heard) < len(l.said) || len(l.told) < len(l.tasks)+len(l.ordered) || delivered < len(l.ordered) {
		return fmt.Errorf("%d of %d tasks are reported and the ends of %d of %d told, %d of %d messages are heard, %d of %d subscribe messages delivered",
			len(l.reported), len(l.tasks), len(l.told), len(l.tasks)+len(l.ordered), len(l.heard), len(l.said), delivered, len(l.ordered))
	}
	return nil
}

// repeated submits everything once more: each key must stand for its task.
func (l *load) repeated(ctx context.Context) error {
	for batch := range slices.Chunk(slices.Collect(maps.Values(l.sent)), 500) {
		results, err := l.client.SendBatch(ctx, batch)
		if err != nil {
			return fmt.Errorf("repeat everything: %w", err)
		}
		for i, r := range results {
			if key := batch[i].IdempotencyKey; r.Err != nil || !r.Replayed || r.Data.TaskID != l.tasks[key] {
				return fmt.Errorf("%s was answered %s and is now %q, a repeat: %v (%v)", key, l.tasks[key], r.Data.TaskID, r.Replayed, r.Err)
			}
		}
	}
	return nil
}

// once holds that nothing was handed out, reported, heard or delivered twice.
func (l *load) once(wechat *sandbox.WeChat) error {
	var wrong []error
	for key, id := range l.tasks {
		if len(l.claims[id]) != 1 || l.reported[id] != 1 {
			wrong = append(wrong, fmt.Errorf("%s: handed out %d times, reported %d times", key, len(l.claims[id]), l.reported[id]))
		}
	}
	for id := range l.said {
		if l.heard[id] != 1 {
			wrong = append(wrong, fmt.Errorf("%s: heard %d times", id, l.heard[id]))
		}
	}
	delivered := map[string]int{}
	for _, send := range wechat.Delivered() {
		delivered[string(send.Data)]++
	}
	for data := range l.ordered {
		if delivered[data] != 1 {
			wrong = append(wrong, fmt.Errorf("%s: delivered %d times", data, delivered[data]))
		}
	}
	again := 0
	for _, ids := range l.told {
		again += len(ids) - 1
	}
	log.Printf("     %d tasks, each claimed and reported once; %d messages, each heard once; %d subscribe messages, each delivered once; %d ends told, %d of them twice",
		len(l.tasks), len(l.said), len(l.ordered), len(l.told), again)
	return errors.Join(wrong[:min(len(wrong), 10)]...)
}

// agrees compares with the statistics.
func (l *load) agrees(ctx context.Context) error {
	s, err := l.client.Statistics(ctx)
	if err != nil {
		return err
	}
	for what, c := range map[string]struct {
		is   api.TaskStatistics
		want int
	}{
		"SMS":                {s.TaskStatistics, int(l.before.SucceededTasks) + len(l.tasks)},
		"subscribe messages": {s.Subscribe, int(l.before.Subscribe.SucceededTasks) + len(l.ordered)},
	} {
		live := c.is.ScheduledTasks + c.is.PendingNewTasks + c.is.PendingRetryTasks + c.is.ProcessingTasks
		if c.is.SucceededTasks != int64(c.want) || c.is.FailedTasks != 0 || live != 0 {
			return fmt.Errorf("the statistics say %d %s succeeded, %d failed, %d live; it must be %d", c.is.SucceededTasks, what, c.is.FailedTasks, live, c.want)
		}
	}
	return nil
}
