package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/api"
)

// tools is what has to be installed.
const tools = "apt-get install -y --no-install-recommends podman buildah runc netavark aardvark-dns iptables catatonit podman-compose caddy postgresql"

func runContainers(ctx context.Context, keep bool) (err error) {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for _, name := range []string{"podman", "podman-compose", "runc", "caddy", "dash"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w; on Debian:\n%s", err, tools)
		}
	}
	dir, err := os.MkdirTemp("", "so-compose-")
	if err != nil {
		return err
	}
	s := &stack{dir: dir, project: filepath.Base(dir)}
	defer func() {
		if keep {
			log.Printf("kept: CONTAINERS_CONF=%s CONTAINERS_STORAGE_CONF=%s podman ps", s.path("containers.conf"), s.path("storage.conf"))
			return
		}
		err = errors.Join(err, s.remove())
	}()
	if err := s.prepare(root); err != nil {
		return err
	}
	return walk(ctx, s.logs,
		step{"make the images of this machine's programs", s.makeImages},
		step{"up: build the image and start everything", s.up},
		step{"play the story", func(ctx context.Context) error { return story(ctx, s.client, "split") }},
		step{"kill containers while messages are submitted", func(ctx context.Context) error {
			return s.killing(ctx, "submit", "nats", "claim", "postgres", "trigger", "report", "gateway")
		}},
		step{"go over to one container for all functions, with what is saved", s.compact},
		step{"play the story there", func(ctx context.Context) error { return story(ctx, s.client, "compact") }},
		step{"kill it while messages are submitted", func(ctx context.Context) error { return s.killing(ctx, allInOne) }},
		step{"down", s.down},
	)
}

// stack is a copy of what compose needs, with a store of images and containers
// of its own: what else podman has on this machine is not touched.
type stack struct {
	dir, project string
	file         composeFile
	port         string      // of the gateway
	client       *api.Client // of the gateway
}

func (s *stack) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *stack) composeDir() string { return s.path("src", "deploy", "compose") }

// prepare copies the sources and says how podman is to work here: without
// systemd, and with the storage driver that works everywhere.
func (s *stack) prepare(root string) error {
	for _, part := range []string{"functions", "shared", "migrations"} {
		if err := os.CopyFS(s.path("src", part), os.DirFS(filepath.Join(root, part))); err != nil {
			return err
		}
	}
	if err := copyCompose(filepath.Join(root, "deploy", "compose"), s.composeDir()); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum", ".dockerignore", "deploy/Dockerfile"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.path("src", name), content, 0o644); err != nil {
			return err
		}
	}
	conf := fmt.Sprintf("[containers]\ncgroups = \"enabled\"\ndefault_ulimits = []\n"+
		"[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\ntmp_dir = %q\n"+
		"[network]\nnetwork_config_dir = %q\n", s.path("tmp"), s.path("networks"))
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", s.path("graph"), s.path("run"))
	return errors.Join(os.WriteFile(s.path("containers.conf"), []byte(conf), 0o644), os.WriteFile(s.path("storage.conf"), []byte(storage), 0o644))
}

// command is a program in the folder of compose.yaml, bound to our store.
func (s *stack) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.composeDir()
	cmd.Env = append(os.Environ(),
		"CONTAINERS_CONF="+s.path("containers.conf"), "CONTAINERS_STORAGE_CONF="+s.path("storage.conf"),
		"COMMIT=compose-test")
	// An engine that is told to end leaves nothing half done.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// tell runs a program and gives what it prints.
func (s *stack) tell(ctx context.Context, name string, args ...string) (string, error) {
	out, err := s.command(ctx, name, args...).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w\n%s", err, failed.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (s *stack) down(ctx context.Context) error {
	if _, err := s.tell(ctx, "podman-compose", "-p", s.project, "down", "-v"); err != nil {
		return err
	}
	left, err := s.tell(ctx, "podman", "ps", "-aq")
	if err == nil && left != "" {
		err = fmt.Errorf("left over: %s", left)
	}
	return err
}

// remove ends what is still there. Only our own store is meant by "all".
func (s *stack) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.tell(ctx, "podman", "system", "reset", "--force")
	return errors.Join(err, os.RemoveAll(s.dir))
}

// logs is the end of what each container wrote, for a failure.
func (s *stack) logs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var b strings.Builder
	for _, name := range s.file.names() {
		out, err := s.command(ctx, "podman", "logs", "--tail", "8", s.container(name)).CombinedOutput()
		fmt.Fprintf(&b, "--- %s (%v)\n%s", name, err, out)
	}
	return b.String()
}
