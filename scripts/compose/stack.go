package main

import (
	"net/http"
	"path/filepath"
	"slices"

	"github.com/sendonce/sendonce/shared/api"
)

// installCommand installs the required packages on Debian.
const installCommand = "apt-get install -y --no-install-recommends podman buildah runc netavark aardvark-dns iptables catatonit caddy postgresql prometheus wget"

// stack is a running copy of deploy/compose, with its podman, client and receivers.
type stack struct {
	repository string // path of its root
	dir        string // a temporary folder, created by newStack
	project    string // the project name for Compose
	port       string // of the gateway
	services   map[string]service
	client     *api.Client // of the gateway, as the admin
	receivers  *receivers
	podmanAPI  *http.Client
	stopPodman func()
}

// service is a service in `docker compose config`.
type service struct {
	Profiles []string `json:"profiles"`
}

func (s *stack) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *stack) composeDir() string { return s.path("deploy") }

// functions returns the names of the services that run functions: those with a profile, except Prometheus. In the profile
// compact, the only one is sendonce.
func (s *stack) functions() []string {
	var names []string
	for name, service := range s.services {
		if service.Profiles != nil && name != "prometheus" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
