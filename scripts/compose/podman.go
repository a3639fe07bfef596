package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The module of the Docker Compose CLI, which Debian 12 does not package. cliSum is the checksum of the module; the
// module's go.sum has the checksums of all its dependencies.
const (
	cliModule  = "github.com/docker/compose/v2"
	cliVersion = "v2.40.3"
	cliSum     = "h1:XeYkQu1svDtyfZPv5nTwFryQ25ZJMkIlc4pz9HalMPI="
)

// cliPath returns the path at which the CLI is cached between runs.
func cliPath() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "sendonce", "docker-compose-"+cliVersion), err
}

// buildCLI builds the Docker Compose CLI into the user's cache directory, unless it is there already. The build takes
// some minutes. buildCLI does not use go install, which rejects a module whose go.mod has an exclude directive.
func (s *stack) buildCLI(ctx context.Context) error {
	path, err := cliPath()
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", cliModule+"@"+cliVersion)
	download.Dir = s.dir // outside of our own module
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("go mod download: %w\n%s", err, out)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	if module.Sum != cliSum {
		return fmt.Errorf("%s@%s has the checksum %s, not %s", cliModule, cliVersion, module.Sum, cliSum)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Built under another name first, so that an interrupted build leaves no file at path.
	build := exec.CommandContext(ctx, "go", "build", "-C", module.Dir, "-trimpath",
		"-ldflags=-s -w -X "+cliModule+"/internal.Version="+cliVersion, "-o", path+".new", "./cmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return os.Rename(path+".new", path)
}

// configurePodman gives podman a store of its own, without the other containers and images of this machine. The
// configuration needs no systemd; the storage driver vfs works everywhere.
func (s *stack) configurePodman() error {
	conf := fmt.Sprintf("[containers]\ncgroups = \"enabled\"\ndefault_ulimits = []\n"+
		"[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\ntmp_dir = %q\n"+
		"[network]\nnetwork_backend = \"netavark\"\nnetwork_config_dir = %q\n", s.path("tmp"), s.path("networks"))
	storage := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n", s.path("graph"), s.path("run"))
	return errors.Join(os.Mkdir(s.path("scratch"), 0o755), os.WriteFile(s.path("containers.conf"), []byte(conf), 0o644), os.WriteFile(s.path("storage.conf"), []byte(storage), 0o644))
}

// startPodman starts podman's API and the loop that runs health checks.
func (s *stack) startPodman() error {
	ctx, stop := context.WithCancel(context.Background())
	socket := s.path("podman.sock")
	service := s.command(ctx, "podman", "system", "service", "--time=0", "unix://"+socket)
	service.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not interrupted by Ctrl-C in the terminal
	if err := service.Start(); err != nil {
		stop()
		return err
	}
	s.podmanAPI = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	checksEnded := make(chan struct{})
	go func() {
		defer close(checksEnded)
		s.checkHealth(ctx)
	}()
	s.stopPodman = func() {
		stop()
		<-checksEnded
		_ = service.Wait() // ended by a signal, which it reports as an error
	}
	return nil
}

// checkHealth runs the health check of each container that is not healthy, until ctx ends. Podman itself needs timers
// of systemd for that.
func (s *stack) checkHealth(ctx context.Context) {
	filters := url.QueryEscape(`{"health": ["starting", "unhealthy"]}`)
	for ctx.Err() == nil {
		// Errors are ignored: podman or the container may be starting or ending.
		var containers []struct{ ID string }
		_ = s.getPodman(ctx, "containers/json?filters="+filters, &containers)
		for _, c := range containers {
			_ = s.getPodman(ctx, "containers/"+c.ID+"/healthcheck", &struct{}{})
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// container is the state of a container.
type container struct {
	RestartCount int // by podman, since the container was created
	State        struct {
		Pid, ExitCode int
		Health        struct{ Status string }
	}
}

// inspect returns the state of the one container of a service.
func (s *stack) inspect(ctx context.Context, service string) (c container, err error) {
	err = s.getPodman(ctx, "containers/"+s.project+"-"+service+"-1/json", &c)
	return c, err
}

// getPodman makes a GET of podman's API, which is cheaper than starting the program podman.
func (s *stack) getPodman(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://podman/v4.0.0/libpod/"+path, nil)
	if err != nil {
		return err
	}
	res, err := s.podmanAPI.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("podman returned an error for %s: %d %s", path, res.StatusCode, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// command returns a command that runs in the folder of compose.yaml and uses our podman.
func (s *stack) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.composeDir()
	cmd.Env = append(os.Environ(),
		"CONTAINERS_CONF="+s.path("containers.conf"), "CONTAINERS_STORAGE_CONF="+s.path("storage.conf"),
		"DOCKER_HOST=unix://"+s.path("podman.sock"), "DOCKER_BUILDKIT=0", "COMPOSE_PROJECT_NAME="+s.project,
		"COMPOSE="+s.path("compose"), "COMMIT=compose-test", "TMPDIR="+s.path("scratch"))
	// SIGTERM lets a program finish its work.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// output runs a program and returns its stdout without the white space around it.
func (s *stack) output(ctx context.Context, name string, args ...string) (string, error) {
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

// compose runs the program that writeComposeCommand has written, and returns its stdout.
func (s *stack) compose(ctx context.Context, args ...string) (string, error) {
	return s.output(ctx, s.path("compose"), args...)
}
