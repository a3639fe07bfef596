// Command compose tests deploy/compose unchanged, with the Docker Compose CLI on podman,
// on a plain Debian machine and without a registry.
//
//	make compose-test
//
// starts the stack and checks the gateway and Prometheus. Then, under load, it replaces every
// function, the trigger and the gateway, and kills each of these, NATS and Postgres. It changes to
// the profile compact with the same volumes, checks its gateway, replaces and kills its one
// function service under load, and removes everything.
//
//	make rolling
//
// replaces every function, the trigger and the gateway twice, and kills nothing.
//
// deploy/Dockerfile builds the image of Sendonce. Its base image and the other images of
// compose.yaml are made from programs of this machine, under the same names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	limit := flag.Duration("limit", 15*time.Minute, "the time that the whole run may take")
	keep := flag.Bool("keep", false, "keep the folder and, if a step fails, the containers")
	rolling := flag.Bool("rolling", false, "only replace services under load: no kills, no change to the profile compact")
	rounds := flag.Int("rounds", 1, "how often each service of the profile split is replaced")
	only := flag.String("only", "", "in the profile split, replace and kill only these `services`, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if err := run(ctx, *keep, *rolling, *rounds, *only); err != nil {
		log.Fatal("compose: ", err)
	}
}

// step is one part of the run.
type step struct {
	name string
	do   func(context.Context) error
}

func run(ctx context.Context, keep, rolling bool, rounds int, only string) (err error) {
	s, err := newStack(".")
	if err != nil {
		return err
	}
	defer func() {
		if keep {
			log.Printf("kept: CONTAINERS_CONF=%s CONTAINERS_STORAGE_CONF=%s podman ps", s.path("containers.conf"), s.path("storage.conf"))
			return
		}
		err = errors.Join(err, s.remove())
	}()
	selected := func(more ...string) []string {
		return slices.DeleteFunc(append(s.functions(), more...), func(name string) bool {
			return only != "" && !slices.Contains(strings.Split(only, ","), name)
		})
	}
	steps := []step{
		{"build the Docker Compose CLI, unless it is cached", s.buildCLI},
		{"write the settings", func(ctx context.Context) error { return errors.Join(s.writeSettings(ctx), s.checkSelection(only)) }},
		{"make images of this machine's programs", s.makeImages},
		{"build the image and start everything", s.up},
		{"check the gateway", func(ctx context.Context) error { return checkGateway(ctx, s.client, "split") }},
		{"check that Prometheus scrapes all functions", s.checkMonitoring},
		{"replace services under load", func(ctx context.Context) error {
			return s.replaceUnderLoad(ctx, selected("trigger", "gateway"), rounds)
		}},
	}
	if !rolling {
		steps = append(steps,
			step{"kill services under load", func(ctx context.Context) error {
				return s.killUnderLoad(ctx, selected("nats", "postgres", "trigger", "gateway"))
			}},
			step{"change to one container for all functions, with the same data", s.compact},
			step{"check the gateway in the profile compact", func(ctx context.Context) error { return checkGateway(ctx, s.client, "compact") }},
			step{"replace this container under load", func(ctx context.Context) error { return s.replaceUnderLoad(ctx, s.functions(), 1) }},
			step{"kill this container under load", func(ctx context.Context) error { return s.killUnderLoad(ctx, s.functions()) }},
		)
	}
	for _, step := range append(steps, step{"remove everything", s.down}) {
		startedAt := time.Now()
		err := step.do(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return fmt.Errorf("%s: interrupted", step.name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", step.name, err, s.logs())
		}
		log.Printf("ok   %s (%.1fs)", step.name, time.Since(startedAt).Seconds())
	}
	return nil
}

// checkSelection returns an error if only, the value of -only, names a service that this program never replaces or kills.
func (s *stack) checkSelection(only string) error {
	known := append(s.functions(), "nats", "postgres", "trigger", "gateway")
	for name := range strings.SplitSeq(only, ",") {
		if only != "" && !slices.Contains(known, name) {
			return fmt.Errorf("-only names %q, which is none of %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}
