// Command compose brings the stack of deploy/compose up with podman on a plain
// Debian machine, as root and without a registry, plays its story through the
// gateway while containers are killed, and takes everything down again.
//
//	make compose-test
//
// The image of Sendonce is the one of deploy/Dockerfile, and compose.yaml is used
// as it stands. The images that it takes from registries are made from the
// programs of this machine, under the same names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	limit := flag.Duration("limit", 10*time.Minute, "for all of it")
	keep := flag.Bool("keep", false, "leave the containers running and the folder in place")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if err := run(ctx, *keep); err != nil {
		log.Fatal("compose: ", err)
	}
}

// tools is what has to be installed.
const tools = "apt-get install -y --no-install-recommends podman buildah runc netavark aardvark-dns iptables catatonit podman-compose caddy postgresql"

func run(ctx context.Context, keep bool) (err error) {
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
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"make the images of this machine's programs", s.makeImages},
		{"up: build the image and start everything", s.up},
		{"play the story", s.story},
		{"kill containers while messages are submitted", s.killing},
		{"down", s.down},
	} {
		begun := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w\n%s", step.name, err, s.logs())
		}
		log.Printf("ok   %s (%.1fs)", step.name, time.Since(begun).Seconds())
	}
	return nil
}

// stack is a copy of what compose needs, with a store of images and containers
// of its own: what else podman has on this machine is not touched.
type stack struct {
	dir, project string
	port         string // of the gateway
	services     []string
	health       map[string][]string // the check of each function
}

func (s *stack) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *stack) composeDir() string { return s.path("src", "deploy", "compose") }

// prepare copies the sources and says how podman is to work here: without
// systemd, and with the storage driver that works everywhere.
func (s *stack) prepare(root string) error {
	for _, part := range []string{"functions", "shared", "migrations", "deploy"} {
		if err := os.CopyFS(s.path("src", part), os.DirFS(filepath.Join(root, part))); err != nil {
			return err
		}
	}
	for _, name := range []string{"go.mod", "go.sum", ".dockerignore"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.path("src", name), content, 0o644); err != nil {
			return err
		}
	}
	for _, made := range []string{".env", "secrets"} { // those of a stack of the developer's
		if err := os.RemoveAll(filepath.Join(s.composeDir(), made)); err != nil {
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
		"VERSION=compose-test")
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
	for _, name := range s.services {
		out, err := s.command(ctx, "podman", "logs", "--tail", "8", s.container(name)).CombinedOutput()
		fmt.Fprintf(&b, "--- %s (%v)\n%s", name, err, out)
	}
	return b.String()
}
