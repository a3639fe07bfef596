package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"syscall"
	"time"
)

// replaceUnderLoad replaces the container of each service, as an upgrade does, and repeats that for each round.
func (s *stack) replaceUnderLoad(ctx context.Context, services []string, rounds int) error {
	return s.underLoad(ctx, slices.Repeat(services, rounds), "replaced", s.replace)
}

// replace stops a service and starts it in a new container. It returns an error if the old
// container was killed or ended with an error.
func (s *stack) replace(ctx context.Context, name string) (detail string, err error) {
	startedAt := time.Now()
	if _, err := s.compose(ctx, "stop", name); err != nil {
		return "", err
	}
	took := time.Since(startedAt)
	ended, err := s.inspect(ctx, name)
	if err == nil && ended.State.ExitCode != 0 {
		err = fmt.Errorf("it ended with exit code %d (137: it was killed)", ended.State.ExitCode)
	}
	if err != nil {
		return "", err
	}
	_, err = s.compose(ctx, "up", "-d", "--no-build", "--no-deps", "--force-recreate", "--wait", name)
	return fmt.Sprintf("ended in %4d ms, ", took.Milliseconds()), err
}

// killUnderLoad kills each service. After each kill it waits until podman has restarted the service.
func (s *stack) killUnderLoad(ctx context.Context, services []string) error {
	return s.underLoad(ctx, services, "killed", s.kill)
}

// kill kills the process of a service, and waits until the service has another process and is healthy.
func (s *stack) kill(ctx context.Context, name string) (detail string, err error) {
	before, err := s.inspect(ctx, name)
	if err != nil {
		return "", err
	}
	if before.State.Pid == 0 { // syscall.Kill would kill this program and all of its process group
		return "", errors.New("it has ended already")
	}
	if err := syscall.Kill(before.State.Pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	return "", waitUntil(ctx, func(ctx context.Context) error {
		now, err := s.inspect(ctx, name)
		if err == nil && (now.State.Pid == 0 || now.State.Pid == before.State.Pid || now.State.Health.Status != "healthy") {
			err = fmt.Errorf("it has process %d (%d before the kill) and is %s", now.State.Pid, before.State.Pid, now.State.Health.Status)
		}
		return err
	})
}

// underLoad disrupts one service after another during traffic. Calls of every function must succeed before the first
// disruption and after each. At the end underLoad compares the responses with the statistics and the deliveries. verb is
// "replaced" or "killed". disrupt returns once the service works again; its detail is for the log.
func (s *stack) underLoad(ctx context.Context, services []string, verb string, disrupt func(ctx context.Context, name string) (detail string, err error)) error {
	kills := verb == "killed"
	before, err := s.client.Statistics(ctx)
	if err != nil {
		return err
	}
	t := s.receivers.newTraffic(s.client)
	wantRestarts := map[string]int{}
	for name := range s.services {
		if name == "migrate" { // its process ends after the migrations
			continue
		}
		c, err := s.inspect(ctx, name)
		if err != nil {
			return err
		}
		wantRestarts[name] = c.RestartCount
	}
	disruptAll := func(ctx context.Context) error {
		for _, name := range services {
			startedAt := time.Now()
			sumsBefore := t.sums()
			detail, err := disrupt(ctx, name)
			recovery := time.Since(startedAt)
			if err == nil {
				err = t.waitForCalls(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s was %s: %w", name, verb, err)
			}
			sumsAfter := t.sums()
			log.Printf("     %s %-9s %sback after %5d ms: %2d responses of 5xx, %2d broken connections, %2d calls succeeded by a repeat",
				verb, name, detail, recovery.Milliseconds(), sumsAfter.serverErrors-sumsBefore.serverErrors, sumsAfter.broken-sumsBefore.broken, sumsAfter.repeated-sumsBefore.repeated)
			if kills {
				wantRestarts[name]++
			} else {
				wantRestarts[name] = 0
			}
			if err := s.checkRestarts(ctx, wantRestarts); err != nil {
				return fmt.Errorf("after %s was %s: %w", name, verb, err)
			}
		}
		return nil
	}
	err = t.callDuring(ctx, disruptAll, func(ctx context.Context) error {
		now, err := s.client.Statistics(ctx)
		if err == nil {
			err = t.checkDone(before, now, kills)
		}
		return err
	})
	if err != nil {
		return err
	}
	log.Printf("     %s", strings.Join(t.summary(), "\n              "))
	return errors.Join(t.resubmit(ctx, s.client), t.checkOnce(s.receivers.delivered(), kills), t.firstFailures(), s.checkViolations(ctx))
}

// checkRestarts returns an error if a service has ended, or if podman has not restarted it as often as wanted.
func (s *stack) checkRestarts(ctx context.Context, wanted map[string]int) error {
	for name, want := range wanted {
		c, err := s.inspect(ctx, name)
		if err == nil && (c.State.Pid == 0 || c.RestartCount != want) {
			err = fmt.Errorf("%s has restarted or ended: process %d, %d restarts, not %d", name, c.State.Pid, c.RestartCount, want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkViolations returns an error if a service violated the permissions of its NATS user.
func (s *stack) checkViolations(ctx context.Context) error {
	out, err := s.command(ctx, "podman", "logs", s.project+"-nats-1").CombinedOutput()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "Violation") {
			return fmt.Errorf("nats: %s", line)
		}
	}
	return nil
}
