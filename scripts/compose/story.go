package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	startLimit = 2 * time.Minute
	settle     = time.Minute // for what must happen by itself
	look       = 200 * time.Millisecond
)

// up is `deploy/compose/up` with podman-compose, which knows no profiles: it is
// told the services instead.
func (s *stack) up(ctx context.Context) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	s.port = port
	if err := s.readServices(); err != nil {
		return err
	}
	example, err := os.ReadFile(filepath.Join(s.composeDir(), ".env.example"))
	if err != nil {
		return err
	}
	env := string(example) + "\nGATEWAY_PORT=" + port + "\n"
	if err := os.WriteFile(filepath.Join(s.composeDir(), ".env"), []byte(env), 0o600); err != nil {
		return err
	}
	cmd := s.command(ctx, "./up", s.services...)
	cmd.Env = append(cmd.Env, "COMPOSE="+s.path("podman-compose"))
	if err := s.lendCaches(ctx); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return errors.Join(s.lookAtImage(ctx), s.ready(ctx))
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

// readServices gives those of the profile split.
func (s *stack) readServices() error {
	content, err := os.ReadFile(filepath.Join(s.composeDir(), "compose.yaml"))
	if err != nil {
		return err
	}
	var file struct {
		Services map[string]struct {
			Profiles    []string `yaml:"profiles"`
			Healthcheck struct {
				Test []string `yaml:"test"`
			} `yaml:"healthcheck"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		return err
	}
	s.health = map[string][]string{}
	for name, service := range file.Services {
		if service.Profiles != nil && !slices.Contains(service.Profiles, "split") {
			continue
		}
		s.services = append(s.services, name)
		if test := service.Healthcheck.Test; service.Profiles != nil {
			s.health[name] = test[1:] // the first word is CMD
		}
	}
	slices.Sort(s.services)
	return nil
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

func (s *stack) url() string { return "http://127.0.0.1:" + s.port }

func (s *stack) client() (*api.Client, error) {
	password, err := os.ReadFile(filepath.Join(s.composeDir(), "secrets", "basic_auth_password"))
	if err != nil {
		return nil, err
	}
	return api.NewClient(s.url(), "admin", string(password)), nil
}

// ready waits until each function lives and the schema is there.
func (s *stack) ready(ctx context.Context) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	c.Tries = 1
	return until(ctx, startLimit, func(ctx context.Context) error {
		for name, test := range s.health {
			// As podman would, if podman-compose had told it right.
			if _, err := s.tell(ctx, "podman", append([]string{"exec", s.container(name)}, test...)...); err != nil {
				return err
			}
		}
		_, err := c.Statistics(ctx)
		return err
	})
}

// until asks again and again until there is no error.
func until(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

// story is the way of a task and of a message through every function.
func (s *stack) story(ctx context.Context) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	return errors.Join(s.taskStory(ctx, c), s.messageStory(ctx, c), s.closed(ctx))
}

func (s *stack) taskStory(ctx context.Context, c *api.Client) error {
	// Its time comes by a schedule of NATS, the trigger and sweep.
	soon := time.Now().Add(2 * time.Second)
	request := api.SendRequest{PhoneNumber: "13800138000", Content: "您的验证码是123456", IdempotencyKey: "story-1", SendAt: &soon}
	sent, err := c.Send(ctx, request)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	again, err := c.Send(ctx, request)
	if err != nil || again.TaskID != sent.TaskID {
		return fmt.Errorf("the replay is %q, not %s (%v)", again.TaskID, sent.TaskID, err)
	}
	err = until(ctx, settle, func(ctx context.Context) error {
		task, err := c.Task(ctx, sent.TaskID)
		if err == nil && task.State != "pending" {
			err = fmt.Errorf("the task is %s, not pending", task.State)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("nobody swept: %w", err)
	}
	claimed, err := c.Claim(ctx, api.ClaimRequest{AppID: "phone", Limit: new(10), Wait: new(5)})
	if err != nil || len(claimed) != 1 || claimed[0].TaskID != sent.TaskID {
		return fmt.Errorf("claimed %v, not the task (%v)", claimed, err)
	}
	if _, err := c.Report(ctx, api.ReportRequest{TaskID: sent.TaskID, AppID: "phone", ClaimID: claimed[0].ClaimID, Status: new(2)}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	task, err := c.Task(ctx, sent.TaskID)
	if err == nil && task.State != "succeeded" {
		err = fmt.Errorf("the task is %s", task.State)
	}
	return err
}

// messageStory needs messages, relay, NATS and stream.
func (s *stack) messageStory(ctx context.Context, c *api.Client) error {
	if _, err := c.SubmitMessage(ctx, api.MessageRequest{From: "ann", ClientMsgID: "c-1", To: "user:bob", Type: "text", Data: api.JSON(`"你好"`)}); err != nil {
		return fmt.Errorf("hand a message over: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for event, err := range c.Stream(ctx, "bob", api.StreamRequest{After: new(int64(0))}) {
		if err != nil {
			return fmt.Errorf("the stream of bob: %w", err)
		}
		if strings.Contains(string(event.Data), "你好") {
			return nil
		}
	}
	return errors.New("bob heard nothing")
}

// closed holds the gateway to what it must not let through.
func (s *stack) closed(ctx context.Context) error {
	for _, path := range []string{"/metrics", "/events/sweep"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url()+path, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		var answer api.Envelope
		err = json.NewDecoder(res.Body).Decode(&answer)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusNotFound || answer.Error != "not_found" {
			return fmt.Errorf("%s is answered %d %v (%v)", path, res.StatusCode, answer, err)
		}
	}
	return nil
}

// victims are killed one after the other.
var victims = []string{"submit", "nats", "claim", "postgres", "trigger", "report", "gateway"}

// killing submits without a pause while containers die by SIGKILL and are
// started again by the engine. Each answer must then be found, and each task be
// claimed and reported.
func (s *stack) killing(ctx context.Context) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	submitting, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var mu sync.Mutex
	answered := map[string]string{} // key -> task
	for n := range 4 {
		all.Go(func() {
			for i := 0; submitting.Err() == nil; i++ {
				key := fmt.Sprintf("kill-%d-%d", n, i)
				if id := submit(ctx, c, key); id != "" {
					mu.Lock()
					answered[key] = id
					mu.Unlock()
				}
			}
		})
	}
	err = s.killAll(ctx)
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

// killAll kills each victim from outside and waits for its successor.
func (s *stack) killAll(ctx context.Context) error {
	for _, name := range victims {
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
		if err := s.ready(ctx); err != nil {
			return fmt.Errorf("after the end of %s: %w", name, err)
		}
	}
	return nil
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
