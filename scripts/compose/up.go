package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const startLimit = 2 * time.Minute

// up is `deploy/compose/up` with podman-compose, which knows no profiles: it is
// told the services instead.
func (s *stack) up(ctx context.Context) error {
	var err error
	if s.port, err = freePort(ctx); err != nil {
		return err
	}
	if err := s.choose("split"); err != nil {
		return err
	}
	cmd := s.command(ctx, "./up", s.file.names()...)
	cmd.Env = append(cmd.Env, "COMPOSE="+s.path("podman-compose"))
	if err := errors.Join(s.lendCaches(ctx), s.makeFront(ctx)); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := s.joinFront(ctx); err != nil {
		return err
	}
	if s.client, err = client(s.composeDir(), "http://127.0.0.1:"+s.port); err != nil {
		return err
	}
	return errors.Join(s.lookAtImage(ctx), s.ready(ctx, s.file.names()))
}

// imageLimit is more than a static binary with certificates and time zones needs.
const imageLimit = 25_000_000

func (s *stack) lookAtImage(ctx context.Context) error {
	out, err := s.tell(ctx, "podman", "image", "inspect", "-f", "{{.Size}} {{.User}}", "sendonce:local")
	if err != nil {
		return err
	}
	var size int
	var user string
	if _, err := fmt.Sscan(out, &size, &user); err != nil {
		return fmt.Errorf("%q: %w", out, err)
	}
	log.Printf("     the image has %.1f MB", float64(size)/1e6)
	if size > imageLimit || user != "65532:65532" {
		return fmt.Errorf("the image has %d bytes and user %q", size, user)
	}
	return nil
}

// lendCaches makes the podman-compose that builds with the caches of this
// machine instead of empty ones.
func (s *stack) lendCaches(ctx context.Context) error {
	caches, err := s.tell(ctx, "go", "env", "GOMODCACHE", "GOCACHE")
	if err != nil {
		return err
	}
	mod, build, _ := strings.Cut(caches, "\n")
	script := fmt.Sprintf("#!/bin/sh\nexec podman-compose -p %s --podman-build-args='--layers=false --network host -v %s:/host/mod -v %s:/host/build' \"$@\"\n", s.project, mod, build)
	return os.WriteFile(s.path("podman-compose"), []byte(script), 0o755)
}

func freePort(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// container is what podman-compose calls the container of a service.
func (s *stack) container(service string) string { return s.project + "_" + service + "_1" }

// ready waits until those of the services that are functions or the trigger live
// and the schema is there.
func (s *stack) ready(ctx context.Context, services []string) error {
	watched := append(s.file.functions(), "trigger")
	c := *s.client
	c.Tries = 1
	return until(ctx, startLimit, func(ctx context.Context) error {
		for _, name := range services {
			if !slices.Contains(watched, name) {
				continue
			}
			// As podman would, if podman-compose had told it right.
			if _, err := s.tell(ctx, "podman", append([]string{"exec", s.container(name)}, s.file.Services[name].probe()...)...); err != nil {
				return err
			}
		}
		_, err := c.Statistics(ctx)
		return err
	})
}
