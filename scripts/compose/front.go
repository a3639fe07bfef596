package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
)

// gatewayNetworks is where compose.yaml gives the gateway its address.
var gatewayNetworks = regexp.MustCompile(`(?m)^    networks:\n      edge: \{\}\n      front: \{ipv4_address: .*$`)

// makeFront makes the network between the gateway and the functions as compose.yaml
// has it, and takes the gateway's place in it out of our copy: podman-compose 1.0 knows
// no addresses. joinFront puts the gateway there once it runs.
func (s *stack) makeFront(ctx context.Context) error {
	path := filepath.Join(s.composeDir(), "compose.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !gatewayNetworks.Match(content) {
		return errors.New("compose.yaml has no address of the gateway")
	}
	content = gatewayNetworks.ReplaceAll(content, []byte("    networks: [edge]"))
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	_, err = s.tell(ctx, "podman", "network", "create", "--internal", "--subnet", address(0)+"/24", "--ip-range", address(0)+"/25", s.front())
	return err
}

func (s *stack) front() string { return s.project + "_front" }

func (s *stack) joinFront(ctx context.Context) error {
	_, err := s.tell(ctx, "podman", "network", "connect", "--ip", address(gateway), s.front(), s.container("gateway"))
	return err
}
