// Command compose proves deploy/compose as it stands, on a plain Debian machine
// and without a registry, on one of two grounds.
//
//	make compose-test
//
// brings the stack up with podman, as root, plays its story through the gateway
// while containers are killed, goes over from the profile split to compact and does
// the same there, and takes everything down again. The image of
// Sendonce is the one of deploy/Dockerfile; those that compose.yaml takes from
// registries are made from the programs of this machine, under the same names.
//
//	make rolling
//
// runs the services as ordinary processes on loopback instead, and replaces each
// of them while the gateway is under load: nothing may be lost, and no call may
// fail that a repeat does not cure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	if isInside() {
		os.Exit(inside())
	}
	limit := flag.Duration("limit", 10*time.Minute, "for all of it")
	keep := flag.Bool("keep", false, "leave the containers running and the folder in place")
	rolling := flag.Bool("rolling", false, "processes that are replaced under load, instead of containers that are killed")
	rounds := flag.Int("rounds", 2, "with -rolling: how often each service is replaced")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	run := func() error { return runContainers(ctx, *keep) }
	if *rolling {
		run = func() error { return runProcesses(ctx, ".", rollingPlan{Rounds: *rounds}) }
	}
	if err := run(); err != nil {
		log.Fatal("compose: ", err)
	}
}

// step is a part of the whole, told when it is done.
type step struct {
	name string
	do   func(context.Context) error
}

// walk does the steps, and gives the logs with the failure of one.
func walk(ctx context.Context, logs func() string, steps ...step) error {
	for _, step := range steps {
		begun := time.Now()
		err := step.do(ctx)
		if errors.Is(ctx.Err(), context.Canceled) {
			return fmt.Errorf("%s: interrupted", step.name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", step.name, err, logs())
		}
		log.Printf("ok   %s (%.1fs)", step.name, time.Since(begun).Seconds())
	}
	return nil
}
