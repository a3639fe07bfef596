package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync"
	"syscall"

	"github.com/sendonce/sendonce/shared/api"
)

// killing submits without a pause while containers die by SIGKILL, one after the
// other, and are started again by the engine. Each answer must then be found, and
// each task be claimed and reported.
func (s *stack) killing(ctx context.Context, victims ...string) error {
	c := s.client
	submitting, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var mu sync.Mutex
	answered := map[string]string{} // key -> task
	for n := range 4 {
		all.Go(func() {
			for i := 0; submitting.Err() == nil; i++ {
				key := fmt.Sprintf("kill-%s-%d-%d", victims[0], n, i)
				if id := submit(ctx, c, key); id != "" {
					mu.Lock()
					answered[key] = id
					mu.Unlock()
				}
			}
		})
	}
	err := s.killAll(ctx, victims, func(ctx context.Context) error {
		begun := -1
		return until(ctx, settle, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if begun < 0 {
				begun = len(answered)
			}
			if more := len(answered) - begun; more < between {
				return fmt.Errorf("%d more submissions were answered, not %d", more, between)
			}
			return nil
		})
	})
	stop()
	all.Wait()
	if err != nil {
		return err
	}
	for key, id := range answered {
		task, err := c.TaskByKey(ctx, key)
		if err != nil || task.TaskID != id {
			return fmt.Errorf("%s was answered %s and is %q (%v)", key, id, task.TaskID, err)
		}
	}
	log.Printf("     %d submissions answered, all found after %d kills", len(answered), len(victims))
	return s.finish(ctx, c, len(answered))
}

// submit repeats one submission until it is answered.
func submit(ctx context.Context, c *api.Client, key string) string {
	for ctx.Err() == nil {
		if sent, err := c.Send(ctx, api.SendRequest{PhoneNumber: "13800138000", Content: key, IdempotencyKey: key}); err == nil {
			return sent.TaskID
		}
	}
	return ""
}

// between two kills so many submissions are answered at least.
const between = 100

// killAll kills each victim from outside and waits for its successor. Calls get
// through before each kill and after the last.
func (s *stack) killAll(ctx context.Context, victims []string, through func(context.Context) error) error {
	for _, name := range victims {
		if err := through(ctx); err != nil {
			return fmt.Errorf("before %s was killed: %w", name, err)
		}
		before, err := s.pid(ctx, name)
		if err != nil {
			return err
		}
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		err = until(ctx, settle, func(ctx context.Context) error {
			pid, err := s.pid(ctx, name)
			if err == nil && (pid == 0 || pid == before) {
				err = fmt.Errorf("%s was not started again", name)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := s.ready(ctx, []string{name}); err != nil {
			return fmt.Errorf("after the end of %s: %w", name, err)
		}
	}
	return through(ctx)
}

func (s *stack) pid(ctx context.Context, service string) (int, error) {
	out, err := s.tell(ctx, "podman", "inspect", "-f", "{{.State.Pid}}", s.container(service))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// finish claims and reports everything that is pending.
func (s *stack) finish(ctx context.Context, c *api.Client, want int) error {
	done := 0
	for done < want {
		tasks, err := c.Claim(ctx, api.ClaimRequest{AppID: "phone", Limit: new(500), Wait: new(1)})
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if len(tasks) == 0 {
			return fmt.Errorf("only %d of %d tasks could be claimed", done, want)
		}
		var reports []api.ReportRequest
		for _, t := range tasks {
			reports = append(reports, api.ReportRequest{TaskID: t.TaskID, ClaimID: t.ClaimID, Status: new(2)})
		}
		results, err := c.ReportBatch(ctx, "phone", reports)
		if err != nil {
			return fmt.Errorf("report: %w", err)
		}
		for _, r := range results {
			if r.Err != nil {
				return fmt.Errorf("report: %w", r.Err)
			}
		}
		done += len(tasks)
	}
	if done > want {
		return fmt.Errorf("%d tasks for %d answers", done, want)
	}
	return nil
}
