package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// allInOne is the service that the profile compact has for all functions.
const allInOne = "sendonce"

// compact replaces one container for each function by one for all. The volumes
// stay, and so does the image.
func (s *stack) compact(ctx context.Context) error {
	if _, err := s.tell(ctx, "podman-compose", "-p", s.project, "down"); err != nil {
		return err
	}
	if err := s.choose("compact"); err != nil {
		return err
	}
	aliases, err := s.takeAliases()
	if err != nil {
		return err
	}
	if _, err := s.tell(ctx, "podman-compose", append([]string{"-p", s.project, "up", "-d", "--no-build"}, s.file.names()...)...); err != nil {
		return err
	}
	connect := []string{"network", "connect"}
	for _, alias := range aliases {
		connect = append(connect, "--alias", alias)
	}
	if _, err := s.tell(ctx, "podman", append(connect, s.front(), s.container(allInOne))...); err != nil {
		return err
	}
	if err := s.joinFront(ctx); err != nil {
		return err
	}
	return s.ready(ctx, s.file.names())
}

// choose finds the services of a profile and writes .env for it.
func (s *stack) choose(profile string) (err error) {
	if s.file, err = readCompose(s.composeDir(), profile); err != nil {
		return err
	}
	return writeEnv(s.composeDir(), "GATEWAY_PORT="+s.port, "COMPOSE_PROFILES="+profile)
}

// takeAliases takes the network where the one container has the names of all
// functions out of our copy of compose.yaml: podman-compose 1.0 knows no aliases.
func (s *stack) takeAliases() ([]string, error) {
	path := filepath.Join(s.composeDir(), "compose.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	front := regexp.MustCompile(`(?m)^    networks:\n      data: \{\}\n      outgoing: \{\}\n      front:\n        aliases: \[(.*)\]$`)
	found := front.FindSubmatch(content)
	if found == nil {
		return nil, errors.New("compose.yaml has no aliases")
	}
	content = front.ReplaceAll(content, []byte("    networks: [data, outgoing]"))
	return strings.Split(string(found[1]), ", "), os.WriteFile(path, content, 0o644)
}
