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
	"time"
)

const natsStartTimeout = 30 * time.Second // long, because reading a large store takes long

// NATSServer is a JetStream server in a process of its own. It can be killed and started
// again with its data.
type NATSServer struct {
	Name string // the server's name, unique in the cluster: n0, n1, …

	t       testing.TB
	bin     string
	config  string
	address string // host:port
	process *Process
}

// NATSCluster has the servers of one JetStream cluster, or a single server.
type NATSCluster []*NATSServer

// NewNATSServer starts a server until the end of the test.
func NewNATSServer(t testing.TB) *NATSServer {
	t.Helper()
	return NewNATSCluster(t, 1)[0]
}

// NewNATSCluster starts n servers until the end of the test, and waits until they accept connections.
// JetStream is available once the servers have elected a leader, a second or two later.
func NewNATSCluster(t testing.TB, n int) NATSCluster {
	t.Helper()
	bin := Build(t, "github.com/nats-io/nats-server/v2")
	addresses := freeAddresses(t, 2*n) // first n for clients, then n for the connections between the servers
	dir := t.TempDir()
	cluster := make(NATSCluster, n)
	for i := range cluster {
		s := &NATSServer{Name: "n" + strconv.Itoa(i), t: t, bin: bin, address: addresses[i]}
		s.config = filepath.Join(dir, s.Name+".conf")
		text := fmt.Sprintf("server_name: %[1]s\nserver_tags: %[1]s\nlisten: %[2]q\njetstream { store_dir: %[3]q, max_file_store: 1TB, strict: true }\n", s.Name, s.address, filepath.Join(dir, s.Name))
		if n > 1 {
			text += fmt.Sprintf("cluster { name: c, listen: %q, routes: [ nats://%s ] }\n", addresses[n+i], strings.Join(addresses[n:], ", nats://"))
		}
		must(t, os.WriteFile(s.config, []byte(text), 0o600))
		cluster[i] = s
		s.launch()
	}
	for _, s := range cluster {
		s.waitUntilReady()
	}
	return cluster
}

// URL returns the URL for clients.
func (s *NATSServer) URL() string { return "nats://" + s.address }

// URL returns the URLs of all servers, separated by commas.
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
	must(s.t, s.process.Kill())
}

// Start starts a killed server again, with the same address and data, and waits until it accepts
// connections.
func (s *NATSServer) Start() {
	s.t.Helper()
	s.launch()
	s.waitUntilReady()
}

func (s *NATSServer) launch() {
	s.t.Helper()
	s.process = StartProcess(s.t, s.bin, nil, "-c", s.config)
}

func (s *NATSServer) waitUntilReady() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), natsStartTimeout)
	defer cancel()
	must(s.t, s.process.WaitFor(ctx, "Server is ready"))
}

// freeAddresses returns n different addresses of this machine on which nothing listens.
func freeAddresses(t testing.TB, n int) []string {
	t.Helper()
	var addresses []string
	for len(addresses) < n {
		port, err := FreePort()
		must(t, err)
		if address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port)); !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
