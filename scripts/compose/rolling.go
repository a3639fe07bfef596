package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// rollingPlan is what is done inside.
type rollingPlan struct {
	Dir    string // prepared for it
	Rounds int    // how often each service is replaced
	Short  bool   // no story, and two services only
}

// away is how long a service is gone at least: what an engine takes to make the
// next container.
const away = 300 * time.Millisecond

const wechatPort = 9100

// runProcesses prepares everything on this machine and then goes inside.
func runProcesses(ctx context.Context, repository string, plan rollingPlan) (err error) {
	if err := haveTools(); err != nil {
		return err
	}
	if plan.Dir, err = os.MkdirTemp("", "so-rolling-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(plan.Dir)) }()
	begun := time.Now()
	if err := prepare(ctx, repository, plan.Dir); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	log.Printf("ok   prepare (%.1fs)", time.Since(begun).Seconds())
	return goInside(ctx, plan)
}

// noEngine is what `up` has for an engine: it starts nothing but hash-password, with
// the program beside it.
const noEngine = `#!/bin/sh
case "$*" in *hash-password) exec "$(dirname "$0")/sendonce" hash-password ;; esac
`

// prepare makes the folder of a stack: what compose takes from deploy/compose
// and has `up` make, and the programs that the images hold.
func prepare(ctx context.Context, repository, dir string) error {
	compose := filepath.Join(dir, "compose")
	if err := errors.Join(os.Chmod(dir, 0o755), copyCompose(filepath.Join(repository, "deploy", "compose"), compose)); err != nil {
		return err
	}
	// What an operator would set: the second phase, and who may be called.
	err := writeEnv(compose, "TWO_PHASE_ENABLED=true", "SENDONCE_OUTGOING_NETWORKS="+address(0)+"/24",
		"WECHAT_APP_ID="+sandbox.WeChatAppID, fmt.Sprint("WECHAT_BASE_URL=http://127.0.0.1:", wechatPort))
	if err != nil {
		return err
	}
	secrets := filepath.Join(compose, "secrets")
	if err := errors.Join(os.Mkdir(secrets, 0o700),
		os.WriteFile(filepath.Join(secrets, "wechat_app_secret"), []byte(sandbox.WeChatSecret), 0o600)); err != nil {
		return err
	}
	postgres, bin := filepath.Join(dir, "postgres"), filepath.Join(dir, "bin")
	engine := filepath.Join(bin, "engine")
	if err := errors.Join(os.Mkdir(bin, 0o755),
		sandbox.Compile(ctx, "github.com/sendonce/sendonce/functions/sendonce", filepath.Join(bin, "sendonce"), false),
		os.WriteFile(engine, []byte(noEngine), 0o755)); err != nil {
		return err
	}
	up := exec.CommandContext(ctx, filepath.Join(compose, "up"))
	up.Env = append(os.Environ(), "COMPOSE="+engine)
	if out, err := up.CombinedOutput(); err != nil {
		return fmt.Errorf("up: %w\n%s", err, out)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "logs"), 0o755), os.Mkdir(postgres, 0o700),
		os.WriteFile(filepath.Join(bin, "start"), []byte(startPostgres), 0o755)); err != nil {
		return err
	}
	uid, err := unprivileged()
	if err != nil {
		return err
	}
	caddy, err := exec.LookPath("caddy")
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, caddy, "version").Output()
	if err != nil {
		return fmt.Errorf("caddy version: %w", err)
	}
	log.Printf("     the gateway is caddy %s", bytes.TrimSpace(version))
	return errors.Join(os.Chown(postgres, uid, -1), os.Symlink(caddy, filepath.Join(bin, "caddy")),
		sandbox.Compile(ctx, natsServer, filepath.Join(bin, "nats-server"), false))
}

// run is what happens inside.
func (plan rollingPlan) run(ctx context.Context) (err error) {
	file, err := readCompose(filepath.Join(plan.Dir, "compose"), "split")
	if err != nil {
		return err
	}
	admin, err := client(filepath.Join(plan.Dir, "compose"), "http://gateway:8080")
	if err != nil {
		return err
	}
	programs := map[string]string{}
	for _, name := range []string{"sendonce", "nats-server", "caddy", "start"} {
		programs[filepath.Join(plan.Dir, "bin", name)] = "/" + name
	}
	if err := file.furnish(ctx, plan.Dir, programs); err != nil {
		return err
	}
	all, err := newProcesses(plan.Dir, file)
	if err != nil {
		return err
	}
	r := &rolling{plan: plan, all: all, load: newLoad(admin, file.functions()), stops: map[string][]time.Duration{}}
	if err := r.receivers(ctx); err != nil {
		return err
	}
	steps := []step{
		{"start everything", all.up},
		{"play the story", func(ctx context.Context) error { return story(ctx, admin, "rolling") }},
		{"replace services under load", r.underLoad},
		{"count", r.count},
		{"end everything", all.down},
	}
	if plan.Short {
		steps = slices.Delete(steps, 1, 2)
	}
	return walk(ctx, all.logs, steps...)
}

// rolling is the replacing of services under load.
type rolling struct {
	plan   rollingPlan
	all    *processes
	load   *load
	wechat *sandbox.WeChat
	stops  map[string][]time.Duration
}

// receivers starts those whom the functions call.
func (r *rolling) receivers(ctx context.Context) (err error) {
	r.wechat, err = sandbox.StartWeChat(ctx, sandbox.WeChatOptions{Port: wechatPort})
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address(1)+":9000")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(r.load.hook), ReadHeaderTimeout: settle}
	go func() { _ = server.Serve(l) }() // to the end of this process
	return nil
}

// underLoad replaces one service after the other, round by round. What the load
// began is finished before it returns.
func (r *rolling) underLoad(ctx context.Context) error {
	before, err := r.load.client.Statistics(ctx)
	if err != nil {
		return err
	}
	r.load.before = before
	if _, err := r.load.client.AddEndpoint(ctx, api.EndpointRequest{URL: "http://" + address(1) + ":9000/", Events: []string{"task.succeeded"}}); err != nil {
		return err
	}
	ctx, abort := context.WithCancel(ctx)
	full, empty := make(chan struct{}), make(chan struct{}) // enough is given, and all is taken
	var giving, taking, listening sync.WaitGroup
	defer func() {
		abort()
		giving.Wait()
		taking.Wait()
		listening.Wait()
	}()
	for who := range 3 {
		giving.Go(func() { r.load.submits(ctx, full, who) })
		taking.Go(func() { r.load.sends(ctx, empty, who) })
	}
	giving.Go(func() { r.load.talks(ctx, full, 1) })
	giving.Go(func() { r.load.talks(ctx, full, 2) })
	giving.Go(func() { r.load.orders(ctx, full) })
	taking.Go(func() { r.load.watches(ctx, empty) })
	listening.Go(func() { r.load.listens(ctx) })
	if err := r.replaceAll(ctx); err != nil {
		return err
	}
	close(full)
	giving.Wait()
	asked := 0
	err = until(ctx, settle, func(context.Context) error {
		err := r.load.outstanding(r.wechat)
		if asked++; err != nil && asked%20 == 0 {
			log.Printf("     still to come: %v", err)
		}
		return err
	})
	close(empty)
	if err != nil {
		return err
	}
	taking.Wait()
	return nil
}

func (r *rolling) replaceAll(ctx context.Context) error {
	names := append(r.all.file.functions(), "trigger", "gateway")
	if r.plan.Short {
		names = []string{"submit", "claim"}
	}
	for round := range r.plan.Rounds {
		for _, name := range names {
			if err := r.replace(ctx, name, round+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace ends a service and starts it again, and waits until calls of all
// functions have come through since.
func (r *rolling) replace(ctx context.Context, name string, round int) error {
	begun := time.Now()
	refused, broken, cured := r.load.seen()
	took, err := r.all.stop(name)
	if err != nil {
		return err
	}
	r.stops[name] = append(r.stops[name], took)
	select {
	case <-time.After(away):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := r.all.launch(name); err != nil {
		return err
	}
	if err := r.all.healthy(ctx, name); err != nil {
		return err
	}
	back := time.Since(begun)
	if err := r.load.goesOn(ctx); err != nil {
		return fmt.Errorf("after %s was replaced: %w", name, err)
	}
	refused2, broken2, cured2 := r.load.seen()
	log.Printf("     %d %-9s ended in %4.0f ms, back after %5.0f ms: %2d answers of 5xx, %2d broken connections, %2d calls cured", round, name,
		float64(took.Milliseconds()), float64(back.Milliseconds()), refused2-refused, broken2-broken, cured2-cured)
	for _, other := range r.all.file.names() {
		if err := r.all.alive(other); err != nil {
			return err
		}
	}
	return errors.Join(r.load.failed()...)
}

// count says what befell the calls of each function, and holds the numbers of
// the service to what was answered.
func (r *rolling) count(ctx context.Context) error {
	for _, name := range r.all.file.functions() {
		if t := r.load.tallies[name]; t.calls.Load() > 0 {
			log.Printf("     %-9s %6d calls: %2d answers of 5xx, %2d broken connections, %2d calls cured by a repeat", name,
				t.calls.Load(), t.refused.Load(), t.broken.Load(), t.cured.Load())
		}
	}
	var slowest []string
	for name, took := range r.stops {
		slowest = append(slowest, fmt.Sprintf("%s %d ms of %s", name, slices.Max(took).Milliseconds(), r.all.file.Services[name].Grace))
	}
	slices.Sort(slowest)
	log.Printf("     the slowest ends: %s", strings.Join(slowest, ", "))
	return errors.Join(r.load.repeated(ctx), r.load.once(r.wechat), r.load.agrees(ctx), r.all.permitted(), errors.Join(r.load.failed()...))
}

// failed are the failures of the load, of which a few tell enough.
func (l *load) failed() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures[:min(len(l.failures), 10)])
}

// goesOn waits until every function that is called was called again.
func (l *load) goesOn(ctx context.Context) error {
	before := map[string]int64{}
	for name, t := range l.tallies {
		before[name] = t.calls.Load()
	}
	return until(ctx, settle, func(context.Context) error {
		for _, name := range []string{"submit", "claim", "report", "subscribe", "messages", "webhooks", "admin"} {
			if l.tallies[name].calls.Load() < before[name]+2 {
				return fmt.Errorf("no call of %s comes through: %w", name, errors.Join(append(l.failed(), errors.New("they go on"))...))
			}
		}
		return nil
	})
}
