package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// useProfiles writes an .env with these profiles, separated by commas, and reads their services into s.services.
func (s *stack) useProfiles(ctx context.Context, profiles string) error {
	example, err := os.ReadFile(filepath.Join(s.composeDir(), ".env.example"))
	if err != nil {
		return err
	}
	// An operator may set the same variables. Here, WeChat is a fake.
	env := fmt.Sprintf("%s\nCOMPOSE_PROFILES=%s\nGATEWAY_PORT=%s\nTWO_PHASE_ENABLED=true\nSENDONCE_OUTGOING_NETWORKS=%s\nWECHAT_APP_ID=%s\nWECHAT_BASE_URL=http://%s\n",
		example, profiles, s.port, outgoingSubnet, sandbox.WeChatAppID, receiverAddress)
	if err := os.WriteFile(filepath.Join(s.composeDir(), ".env"), []byte(env), 0o600); err != nil {
		return err
	}
	out, err := s.compose(ctx, "config", "--format", "json")
	if err != nil {
		return err
	}
	var config struct {
		Services map[string]service `json:"services"`
	}
	err = json.Unmarshal([]byte(out), &config)
	s.services = config.Services
	return err
}

// writeSettings chooses the port of the gateway, writes the program `compose` and the settings of the profile split, and
// reads the services of this profile.
func (s *stack) writeSettings(ctx context.Context) error {
	port, err := sandbox.FreePort()
	if err != nil {
		return err
	}
	s.port = strconv.Itoa(port)
	return errors.Join(s.writeComposeCommand(ctx), s.useProfiles(ctx, "split"))
}

// up starts everything with `deploy/compose/up`, starts the receivers, checks the image, and registers the endpoint.
func (s *stack) up(ctx context.Context) error {
	if _, err := s.output(ctx, "./up", "--wait"); err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(s.composeDir(), "secrets", "basic_auth_password"))
	if err != nil {
		return err
	}
	s.client = api.NewClient("http://127.0.0.1:"+s.port, "admin", string(password))
	if s.receivers, err = startReceivers(ctx); err != nil {
		return err
	}
	return errors.Join(s.checkImage(ctx), s.receivers.registerEndpoint(ctx, s.client))
}

// ourImage is podman's name of the image that compose.yaml calls sendonce:local.
const ourImage = "docker.io/library/sendonce:local"

// writeComposeCommand writes the program `compose`, which deploy/compose/up runs in place of docker
// compose. `compose build` runs podman instead of BuildKit, with the Go caches of this machine. All other
// commands run the Docker Compose CLI.
func (s *stack) writeComposeCommand(ctx context.Context) error {
	caches, err := s.output(ctx, "go", "env", "GOMODCACHE", "GOCACHE")
	if err != nil {
		return err
	}
	cli, err := cliPath()
	if err != nil {
		return err
	}
	modules, builds, _ := strings.Cut(caches, "\n")
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" != build ] || exec podman build --layers=false --network host -v %[1]s:/host/mod -v %[2]s:/host/build \
	--build-arg COMMIT="$COMMIT" -t %[3]s -f %[4]s/deploy/Dockerfile %[4]s
exec %[5]s "$@"
`, modules, builds, ourImage, s.repository, cli)
	return os.WriteFile(s.path("compose"), []byte(script), 0o755)
}

// imageLimit is the maximum size of the image in bytes: enough for a static binary with certificates and time zones.
const imageLimit = 28_000_000

// checkImage returns an error if the image is too large or runs as root.
func (s *stack) checkImage(ctx context.Context) error {
	out, err := s.output(ctx, "podman", "image", "inspect", "-f", "{{.Size}} {{.User}}", ourImage)
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

// compact replaces the containers of the functions with one container for all, with the same volumes and image.
func (s *stack) compact(ctx context.Context) error {
	if _, err := s.compose(ctx, "down"); err != nil {
		return err
	}
	if err := s.useProfiles(ctx, "compact"); err != nil {
		return err
	}
	_, err := s.compose(ctx, "up", "-d", "--no-build", "--wait")
	return err
}

// down removes containers and volumes, also those of unused profiles. It returns an error if some are left.
func (s *stack) down(ctx context.Context) error {
	if _, err := s.compose(ctx, "--profile", "*", "down", "-v"); err != nil {
		return err
	}
	containers, err := s.output(ctx, "podman", "ps", "-aq")
	volumes, err2 := s.output(ctx, "podman", "volume", "ls", "-q")
	if containers+volumes != "" {
		err = errors.Join(err, fmt.Errorf("left over: %s %s", containers, volumes))
	}
	return errors.Join(err, err2)
}

// logs returns the last log lines of each container, without calls that succeeded.
func (s *stack) logs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	names, _ := s.output(ctx, "podman", "ps", "-a", "--format", "{{.Names}} {{.Status}}")
	var b strings.Builder
	for line := range strings.Lines(names) {
		name, _, _ := strings.Cut(line, " ")
		out, err := s.command(ctx, "podman", "logs", "--tail", "200", name).CombinedOutput()
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(out)), "\n"), isSuccess)
		fmt.Fprintf(&b, "--- %s (%v)\n%s\n", strings.TrimSpace(line), err, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}

// isSuccess reports whether a log line is that of a call with a 2xx response.
func isSuccess(line string) bool { return strings.Contains(line, `"status":2`) }
