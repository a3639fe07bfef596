package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// newStack copies deploy/compose of the repository and starts podman, but no container.
func newStack(repository string) (*stack, error) {
	for _, name := range []string{"podman", "runc", "caddy", "prometheus", "wget"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w; on Debian:\n%s", err, installCommand)
		}
	}
	repository, err := filepath.Abs(repository)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "so-compose-")
	if err != nil {
		return nil, err
	}
	s := &stack{repository: repository, dir: dir, project: filepath.Base(dir), stopPodman: func() {}}
	if err := errors.Join(s.copyCompose(), s.configurePodman(), s.startPodman()); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// copyCompose copies deploy/monitoring, and deploy/compose without the secrets of a developer's own stack and with a
// fixed subnet for the network outgoing. useProfiles later replaces a developer's .env.
func (s *stack) copyCompose() error {
	for folder, to := range map[string]string{"compose": s.composeDir(), "monitoring": s.path("monitoring")} {
		if err := os.CopyFS(to, os.DirFS(filepath.Join(s.repository, "deploy", folder))); err != nil {
			return err
		}
	}
	secrets := filepath.Join(s.composeDir(), "secrets")
	override := "networks: {outgoing: {ipam: {config: [{subnet: " + outgoingSubnet + "}]}}}\n"
	return errors.Join(
		os.RemoveAll(secrets),
		os.Mkdir(secrets, 0o700),
		os.WriteFile(filepath.Join(secrets, "wechat_app_secret"), []byte(sandbox.WeChatSecret), 0o600),
		os.WriteFile(filepath.Join(s.composeDir(), "compose.override.yaml"), []byte(override), 0o600),
	)
}

// remove stops our podman, and removes its store and s.dir.
func (s *stack) remove() error {
	s.stopPodman()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reset := func() error {
		_, err := s.output(ctx, "podman", "system", "reset", "--force")
		return err
	}
	err := reset()
	if err != nil { // the clean-up of an ended container may have written to podman's directory during the reset
		err = reset()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
