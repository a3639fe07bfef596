package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/joho/godotenv"
)

// program is what an image has by itself: how it starts, and as whom. We say it
// in the image's place.
type program struct {
	start   []string // before the service's command
	command []string // where the service has none
	env     []string
	uid     int // where the service has none; only root can heed it
}

// programs are those of the images, by the variable of .env that names them. All
// share one loopback, so a function listens at its own name instead of everywhere.
func (p *processes) program(name string, s service) (program, error) {
	match := regexp.MustCompile(`^\$\{(\w+):-`).FindStringSubmatch(s.Image)
	if match == nil {
		return program{}, fmt.Errorf("the image %q has no variable", s.Image)
	}
	switch match[1] {
	case "IMAGE":
		return program{start: []string{"/sendonce"}, env: []string{"APP_HOST=" + name}, uid: 65532}, nil
	case "NATS_IMAGE":
		return program{start: []string{"/nats-server"}, uid: 65532}, nil
	case "CADDY_IMAGE":
		return program{command: []string{"/caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"},
			env: []string{"XDG_DATA_HOME=/data", "XDG_CONFIG_HOME=/config"}}, nil
	case "POSTGRES_IMAGE":
		uid, err := unprivileged()
		return program{start: []string{"/start"}, env: []string{"PGDATA=" + filepath.Join(p.dir, "postgres")}, uid: uid}, err
	}
	return program{}, fmt.Errorf("what starts in the image of %s is not known here", match[1])
}

// unprivileged is a user for Postgres.
func unprivileged() (int, error) {
	if uid := os.Geteuid(); uid != 0 {
		return uid, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, fmt.Errorf("a user for Postgres, which does not run as root: %w", err)
	}
	return strconv.Atoi(u.Uid)
}

// processes are the services of compose.yaml, each in a process of its own.
type processes struct {
	dir  string // its folders are compose, logs, postgres, root
	file composeFile
	env  []string // .env, and where programs are found

	mu      sync.Mutex
	running map[string]*process
}

type process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	failed error // how it ended, once it has
}

func newProcesses(dir string, file composeFile) (*processes, error) {
	settings, err := godotenv.Read(filepath.Join(dir, "compose", ".env"))
	if err != nil {
		return nil, err
	}
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	p := &processes{dir: dir, file: file, running: map[string]*process{}, env: []string{"PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"}}
	for name, value := range settings {
		if name != "COMPOSE_PROFILES" {
			p.env = append(p.env, name+"="+value)
		}
	}
	return p, nil
}

// command is a program as the service starts it, or its health check.
func (p *processes) command(ctx context.Context, name string, words []string) (*exec.Cmd, error) {
	s := p.file.Services[name]
	image, err := p.program(name, s)
	if err != nil {
		return nil, err
	}
	if words == nil {
		words = append(slices.Clone(image.start), s.Command...)
		if s.Command == nil {
			words = append(words, image.command...)
		}
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	// What compose gives: .env only to who asks for it.
	cmd.Env = append(slices.Clone(p.env[:2]), image.env...)
	if s.EnvFile != "" {
		cmd.Env = append(cmd.Env, p.env[2:]...)
	}
	for key, value := range s.Environment {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		uid := image.uid
		if own, _, _ := strings.Cut(s.User, ":"); own != "" {
			if uid, err = strconv.Atoi(own); err != nil {
				return nil, fmt.Errorf("user of %s: %w", name, err)
			}
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return cmd, nil
}

// start starts a service once those that it needs are as it needs them.
func (p *processes) start(ctx context.Context, name string) error {
	if p.find(name) != nil {
		return nil
	}
	for needed, how := range p.file.Services[name].DependsOn {
		if err := p.start(ctx, needed); err != nil {
			return err
		}
		switch how.Condition {
		case "service_completed_successfully":
			if err := p.completes(ctx, needed); err != nil {
				return err
			}
		case "service_healthy":
			if err := p.healthy(ctx, needed); err != nil {
				return err
			}
		}
	}
	return p.launch(name)
}

func (p *processes) launch(name string) error {
	cmd, err := p.command(context.Background(), name, nil)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	one := &process{cmd: cmd, ended: make(chan struct{})}
	p.mu.Lock()
	p.running[name] = one
	p.mu.Unlock()
	go func() {
		one.failed = cmd.Wait()
		close(one.ended)
	}()
	return nil
}

func (p *processes) log(name string) string { return filepath.Join(p.dir, "logs", name) }

func (p *processes) find(name string) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running[name]
}

func (p *processes) completes(ctx context.Context, name string) error {
	one := p.find(name)
	select {
	case <-one.ended:
		if one.failed != nil {
			return fmt.Errorf("%s: %w", name, one.failed)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// healthy waits until the service's own check says that it lives.
func (p *processes) healthy(ctx context.Context, name string) error {
	words := p.file.Services[name].probe()
	if words == nil {
		return nil
	}
	return until(ctx, settle, func(ctx context.Context) error {
		if err := p.alive(name); err != nil {
			return err
		}
		cmd, err := p.command(ctx, name, words)
		if err != nil {
			return err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s is not healthy: %w\n%s", name, err, out)
		}
		return nil
	})
}

// alive is an error for a service that has ended without being asked to.
func (p *processes) alive(name string) error {
	one := p.find(name)
	select {
	case <-one.ended:
		if one.failed != nil || p.file.Services[name].Restart != "on-failure" {
			return fmt.Errorf("%s has ended by itself (%v)", name, one.cmd.ProcessState)
		}
	default:
	}
	return nil
}

// up starts every service and waits until all live.
func (p *processes) up(ctx context.Context) error {
	for _, name := range p.file.names() {
		if err := p.start(ctx, name); err != nil {
			return err
		}
	}
	for _, name := range p.file.names() {
		if err := p.healthy(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// stop ends a service as compose does, and says how long it took. To be killed,
// or to end with an error, is one.
func (p *processes) stop(name string) (time.Duration, error) {
	one, grace, begun := p.find(name), p.file.Services[name].Grace, time.Now()
	if err := p.alive(name); err != nil {
		return 0, err
	}
	if err := one.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, fmt.Errorf("stop %s: %w", name, err)
	}
	select {
	case <-one.ended:
	case <-time.After(grace):
		err := one.cmd.Process.Kill()
		<-one.ended
		return 0, errors.Join(err, fmt.Errorf("%s did not end within %s of SIGTERM and was killed", name, grace))
	}
	if one.failed != nil {
		return 0, fmt.Errorf("%s ended with an error: %w", name, one.failed)
	}
	return time.Since(begun), nil
}

// down ends every service, those that others need last.
func (p *processes) down(context.Context) error {
	var errs []error
	for left := p.file.names(); len(left) > 0; {
		needed := func(name string) bool {
			return slices.ContainsFunc(left, func(other string) bool {
				_, needs := p.file.Services[other].DependsOn[name]
				return needs
			})
		}
		var all sync.WaitGroup
		ended := make(chan error, len(left))
		var later []string
		for _, name := range left {
			switch {
			case needed(name):
				later = append(later, name)
			case p.find(name) != nil:
				all.Go(func() {
					_, err := p.stop(name)
					ended <- err
				})
			}
		}
		all.Wait()
		close(ended)
		for err := range ended {
			errs = append(errs, err)
		}
		left = later
	}
	return errors.Join(errs...)
}

// logs is the end of what each service wrote, for a failure.
func (p *processes) logs() string {
	var b strings.Builder
	for _, name := range p.file.names() {
		text, err := os.ReadFile(p.log(name))
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), isAnswer)
		fmt.Fprintf(&b, "--- %s (%v)\n%s\n", name, err, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}

// permitted fails when a component asked NATS for what its user may not do.
func (p *processes) permitted() error {
	text, err := os.ReadFile(p.log("nats"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "Violation") {
			return fmt.Errorf("nats: %s", line)
		}
	}
	return nil
}

// isAnswer finds the lines of calls that were answered well.
func isAnswer(line string) bool { return strings.Contains(line, `"status":2`) }
