package sandbox

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// NATSServer is a JetStream server in a process of its own: one that can be
// killed, and started again on what it has written.
type NATSServer struct {
	Name string // as the cluster knows it

	t       testing.TB
	bin     string
	config  string
	host    string // with its port
	process *Process
}

// NATSCluster is servers that keep copies for each other.
type NATSCluster []*NATSServer

// NewNATSServer starts a server for the length of the test.
func NewNATSServer(t testing.TB) *NATSServer {
	t.Helper()
	return NewNATSCluster(t, 1)[0]
}

// NewNATSCluster starts n servers for the length of the test. They take
// connections when it returns; until they have chosen a leader, which takes a
// second or two, JetStream answers nobody.
func NewNATSCluster(t testing.TB, n int) NATSCluster {
	t.Helper()
	bin := Build(t, "github.com/nats-io/nats-server/v2", false)
	hosts := freeHosts(t, 2*n) // theirs for clients, then theirs for each other
	dir := t.TempDir()
	cluster := make(NATSCluster, n)
	for i := range cluster {
		s := &NATSServer{Name: "n" + strconv.Itoa(i), t: t, bin: bin, host: hosts[i]}
		s.config = filepath.Join(dir, s.Name+".conf")
		// The limit bounds nothing in practice, as in StartNATS.
		text := fmt.Sprintf("server_name: %[1]s\nserver_tags: %[1]s\nlisten: %[2]q\njetstream { store_dir: %[3]q, max_file_store: 1TB, strict: true }\n", s.Name, s.host, filepath.Join(dir, s.Name))
		if n > 1 {
			text += fmt.Sprintf("cluster { name: c, listen: %q, routes: [ nats://%s ] }\n", hosts[n+i], strings.Join(hosts[n:], ", nats://"))
		}
		if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
			t.Fatalf("sandbox: %v", err)
		}
		cluster[i] = s
		s.launch()
	}
	for _, s := range cluster {
		s.untilReady()
	}
	return cluster
}

// URL is where clients connect.
func (s *NATSServer) URL() string { return "nats://" + s.host }

// URL is where clients connect to any of the servers.
func (c NATSCluster) URL() string {
	urls := make([]string, len(c))
	for i, s := range c {
		urls[i] = s.URL()
	}
	return strings.Join(urls, ",")
}

// Kill ends the server with SIGKILL and waits until it is gone.
func (s *NATSServer) Kill() {
	s.t.Helper()
	if err := s.process.Kill(); err != nil {
		s.t.Fatalf("sandbox: %v", err)
	}
}

// Start starts a server that was killed, where it was and with what it has on
// its disk, and returns once it takes connections.
func (s *NATSServer) Start() {
	s.t.Helper()
	s.launch()
	s.untilReady()
}

func (s *NATSServer) launch() {
	s.t.Helper()
	s.process = StartProcess(s.t, s.bin, nil, "-c", s.config)
}

func (s *NATSServer) untilReady() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), natsStartLimit)
	defer cancel()
	if err := s.process.WaitFor(ctx, "Server is ready"); err != nil {
		s.t.Fatalf("sandbox: %v", err)
	}
}

// freeHosts gives addresses on this machine that nobody listens at.
func freeHosts(t testing.TB, n int) []string {
	t.Helper()
	var hosts []string
	for len(hosts) < n {
		port, err := FreePort()
		if err != nil {
			t.Fatalf("sandbox: %v", err)
		}
		if host := net.JoinHostPort(natsHost, strconv.Itoa(port)); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
