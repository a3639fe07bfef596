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

// replaceUnderLoad replaces each of the services as a new version does.
func (s *stack) replaceUnderLoad(ctx context.Context, services []string, rounds int) error {
	return s.underLoad(ctx, slices.Repeat(services, rounds), "replaced", s.replace)
}

// replace ends a service and starts a new container of it. One that ends with an
// error, or has to be killed, fails.
func (s *stack) replace(ctx context.Context, name string) (string, error) {
	begun := time.Now()
	if _, err := s.compose(ctx, "stop", name); err != nil {
		return "", err
	}
	took := time.Since(begun)
	ended, err := s.inspect(ctx, name)
	if err == nil && ended.State.ExitCode != 0 {
		err = fmt.Errorf("it ended with exit code %d, 137 if it was killed", ended.State.ExitCode)
	}
	if err != nil {
		return "", err
	}
	_, err = s.compose(ctx, "up", "-d", "--no-build", "--no-deps", "--force-recreate", "--wait", name)
	return fmt.Sprintf("ended in %4d ms, ", took.Milliseconds()), err
}

// killUnderLoad kills each of the services; the engine starts it again.
func (s *stack) killUnderLoad(ctx context.Context, services []string) error {
	return s.underLoad(ctx, services, "killed", s.kill)
}

func (s *stack) kill(ctx context.Context, name string) (string, error) {
	before, err := s.inspect(ctx, name)
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(before.State.Pid, syscall.SIGKILL); err != nil {
		return "", err
	}
	return "", until(ctx, waitLimit, func(ctx context.Context) error {
		now, err := s.inspect(ctx, name)
		if err == nil && (now.State.Pid == 0 || now.State.Pid == before.State.Pid || now.State.Health.Status != "healthy") {
			err = fmt.Errorf("process %d after %d, %s", now.State.Pid, before.State.Pid, now.State.Health.Status)
		}
		return err
	})
}

// underLoad disrupts one service after another during traffic, and compares the responses
// with what the service did. Calls of every function must succeed before
// the first and after each.
func (s *stack) underLoad(ctx context.Context, services []string, verb string, disrupt func(context.Context, string) (string, error)) error {
	kills := verb == "killed"
	before, err := s.client.Statistics(ctx)
	if err != nil {
		return err
	}
	l := s.receivers.newTraffic(s.client)
	restarts := map[string]int{}
	for name := range s.services {
		if name == "migrate" { // which has ended
			continue
		}
		c, err := s.inspect(ctx, name)
		if err != nil {
			return err
		}
		restarts[name] = c.RestartCount
	}
	disruptAll := func(ctx context.Context) error {
		for _, name := range services {
			begun := time.Now()
			refused, broken, repeated := l.sums()
			detail, err := disrupt(ctx, name)
			back := time.Since(begun)
			if err == nil {
				err = l.goesOn(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s was %s: %w", name, verb, err)
			}
			refused2, broken2, repeated2 := l.sums()
			log.Printf("     %s %-9s %sback after %5d ms: %2d responses of 5xx, %2d broken connections, %2d calls succeeded by a repeat",
				verb, name, detail, back.Milliseconds(), refused2-refused, broken2-broken, repeated2-repeated)
			if kills {
				restarts[name]++
			} else {
				restarts[name] = 0
			}
			if err := s.noOtherEnded(ctx, restarts); err != nil {
				return fmt.Errorf("after %s was %s: %w", name, verb, err)
			}
		}
		return nil
	}
	err = l.around(ctx, disruptAll, func(ctx context.Context) error {
		now, err := s.client.Statistics(ctx)
		if err == nil {
			err = l.done(before, now, kills)
		}
		return err
	})
	if err != nil {
		return err
	}
	log.Printf("     %s", strings.Join(l.summary(), "\n              "))
	return errors.Join(l.resubmit(ctx, s.client), l.once(s.receivers.delivered(), kills), l.failed(), s.noViolations(ctx))
}

// noOtherEnded fails if a service was started again that was not killed.
func (s *stack) noOtherEnded(ctx context.Context, restarts map[string]int) error {
	for name, want := range restarts {
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

// noViolations fails if a service violated the permissions of its NATS user.
func (s *stack) noViolations(ctx context.Context) error {
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
