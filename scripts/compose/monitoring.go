package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"slices"
)

// checkMonitoring starts Prometheus with the profile monitoring, waits until Prometheus scrapes every function and has
// evaluated every alert rule without an error, and stops Prometheus.
func (s *stack) checkMonitoring(ctx context.Context) error {
	if err := s.useProfiles(ctx, "split,monitoring"); err != nil {
		return err
	}
	if _, err := s.compose(ctx, "up", "-d", "--no-build", "--wait", "prometheus"); err != nil {
		return err
	}
	if err := waitUntil(ctx, s.checkTargets); err != nil {
		return err
	}
	if err := waitUntil(ctx, s.checkRules); err != nil {
		return err
	}
	if _, err := s.compose(ctx, "rm", "--stop", "--force", "prometheus"); err != nil {
		return err
	}
	return s.useProfiles(ctx, "split")
}

// queryPrometheus makes a GET of the API of Prometheus and decodes the result into data.
func (s *stack) queryPrometheus(ctx context.Context, path string, data any) error {
	out, err := s.compose(ctx, "exec", "-T", "prometheus", "wget", "-q", "-O", "-", "http://127.0.0.1:9090/api/v1/"+path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), &struct {
		Data any `json:"data"`
	}{data})
}

// checkTargets returns an error until Prometheus scrapes every target.
func (s *stack) checkTargets(ctx context.Context) error {
	var found struct {
		ActiveTargets []struct{ Health, ScrapeURL, LastError string }
	}
	if err := s.queryPrometheus(ctx, "targets?state=active", &found); err != nil {
		return err
	}
	for _, t := range found.ActiveTargets {
		if t.Health != "up" {
			return fmt.Errorf("the target %s is %s: %s", t.ScrapeURL, t.Health, t.LastError)
		}
	}
	// One target for each function, one for the trigger, and one for /exporter/metrics.
	if want := len(s.functions()) + 2; len(found.ActiveTargets) != want {
		return fmt.Errorf("prometheus has %d targets, not %d", len(found.ActiveTargets), want)
	}
	return nil
}

// checkRules returns an error until Prometheus has evaluated every alert rule.
func (s *stack) checkRules(ctx context.Context) error {
	var found struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := s.queryPrometheus(ctx, "rules", &found); err != nil {
		return err
	}
	var names []string
	for _, g := range found.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				return fmt.Errorf("the rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
			names = append(names, r.Name)
		}
	}
	if !slices.Contains(names, "SendonceOldestPending") {
		return fmt.Errorf("prometheus has the rules %q", names)
	}
	log.Printf("     prometheus scrapes all functions and evaluates %d rules", len(names))
	return nil
}
