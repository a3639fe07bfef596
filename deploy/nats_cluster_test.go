package deploy

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// productionNATS runs the three NATS servers of the overlay production on this machine, with the Secrets that the
// scripts generate.
type productionNATS struct {
	servers []*server.Server
	urls    string
	dir     string            // with tls/ca.crt
	users   map[string]string // passwords by user name, also that of the routes
}

// startProductionNATS starts the servers and waits until they form a cluster.
func startProductionNATS(t *testing.T) *productionNATS {
	t.Helper()
	mainFile := natsConfig(t, "knative/overlays/production")
	p := &productionNATS{dir: filepath.Dir(mainFile), users: map[string]string{}}
	passwords := readFile(t, filepath.Join(p.dir, "secrets/nats-passwords.conf"))
	var values object // the file is valid YAML, too
	require.NoError(t, yaml.Unmarshal([]byte(passwords), &values))
	for _, u := range bus.Users(bus.StreamAccepted) {
		p.users[u.Name] = text(values, bus.PasswordVariable(u.Name))
		require.Len(t, p.users[u.Name], 48)
	}
	p.users["route"] = text(values, "NATS_PASSWORD_ROUTE")
	require.Len(t, p.users["route"], 48)
	var routes []string
	for range 3 {
		port, err := sandbox.FreePort()
		require.NoError(t, err)
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for i, route := range routes {
		passwords = strings.ReplaceAll(passwords, fmt.Sprintf("nats-%d.%s:6222", i, natsService), route)
	}
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "secrets/nats-passwords.conf"), []byte(passwords), 0o600))
	var clients []string
	for i, route := range routes {
		s := p.start(t, mainFile, fmt.Sprintf("nats-%d", i), route, nil)
		p.servers = append(p.servers, s)
		clients = append(clients, "tls://"+s.Addr().String())
	}
	p.urls = strings.Join(clients, ",")
	require.Eventually(t, func() bool {
		for _, s := range p.servers {
			if s.NumRoutes() < 2 || s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) < 3 {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond)
	return p
}

// start starts a server with the configuration mainFile and this name. Other servers connect to the address route.
// change may be nil.
func (p *productionNATS) start(t *testing.T, mainFile, name, route string, change func(*server.Options)) *server.Server {
	t.Helper()
	own := filepath.Join(p.dir, name+".conf")
	require.NoError(t, os.WriteFile(own, []byte(strings.ReplaceAll(readFile(t, mainFile), "$POD_NAME", name)), 0o600))
	var o server.Options
	require.NoError(t, o.ProcessConfigFile(own))
	host, port, err := net.SplitHostPort(route)
	require.NoError(t, err)
	o.Host, o.Port, o.HTTPPort, o.Cluster.Host = host, -1, 0, host
	_, err = fmt.Sscan(port, &o.Cluster.Port)
	require.NoError(t, err)
	o.StoreDir, o.PidFile, o.NoSigs, o.NoLog = t.TempDir(), "", true, true
	if change != nil {
		change(&o)
	}
	s, err := server.NewServer(&o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(10*time.Second))
	return s
}

func (p *productionNATS) bus(t *testing.T, user string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(bus.Config{
		URL: p.urls, User: user, Password: p.users[user], CAFile: filepath.Join(p.dir, "tls/ca.crt"), Replicas: 3,
	}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

func TestProductionNATSRejectsUnauthenticated(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	p := startProductionNATS(t)
	trigger := p.bus(t, bus.UserTrigger)
	require.Eventually(t, func() bool { return trigger.Ensure(t.Context()) == nil }, 60*time.Second, 100*time.Millisecond, "streams with three replicas")
	durability, err := p.bus(t, "messages").Durability(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, bus.DurableReplicated, durability)

	ca := nats.RootCAs(filepath.Join(p.dir, "tls/ca.crt"))
	nc, err := nats.Connect(p.urls, ca, nats.UserInfo("operator", p.users["operator"]))
	require.NoError(t, err)
	require.NoError(t, nc.Publish("orders.paid", nil))
	nc.Close()
	for name, connect := range map[string]func() (*nats.Conn, error){
		"no user":            func() (*nats.Conn, error) { return nats.Connect(p.urls, ca) },
		"wrong password":     func() (*nats.Conn, error) { return nats.Connect(p.urls, ca, nats.UserInfo("operator", testPassword)) },
		"user of the routes": func() (*nats.Conn, error) { return nats.Connect(p.urls, ca, nats.UserInfo("route", p.users["route"])) },
		"without the CA": func() (*nats.Conn, error) {
			return nats.Connect(p.urls, nats.UserInfo("operator", p.users["operator"]))
		},
		"without TLS": func() (*nats.Conn, error) {
			return connectWithoutTLS(p.servers[0].Addr().String(), "operator", p.users["operator"])
		},
	} {
		_, err := connect()
		require.Error(t, err, name)
	}

	// A server without the certificate or without the password cannot join.
	mainFile := filepath.Join(p.dir, "nats.conf")
	for name, change := range map[string]func(o *server.Options){
		"no credentials": func(o *server.Options) {
			o.Cluster.Username, o.Cluster.Password = "", ""
			for _, r := range o.Routes {
				r.User = nil
			}
		},
		"another password": func(o *server.Options) {
			o.Cluster.Password = testPassword
			for _, r := range o.Routes {
				r.User = url.UserPassword("route", testPassword)
			}
		},
		"no certificate": func(o *server.Options) {
			o.Cluster.TLSConfig = &tls.Config{RootCAs: o.Cluster.TLSConfig.RootCAs, ServerName: "127.0.0.1"}
		},
		"no TLS": func(o *server.Options) { o.Cluster.TLSConfig = nil },
	} {
		port, err := sandbox.FreePort()
		require.NoError(t, err)
		p.start(t, mainFile, strings.ReplaceAll(name, " ", "-"), fmt.Sprintf("127.0.0.1:%d", port), func(o *server.Options) {
			o.JetStream = false
			change(o)
		})
	}
	require.Never(t, func() bool {
		return slices.ContainsFunc(p.servers, func(s *server.Server) bool { return !hasOnlyPeers(t, s) })
	}, 2*time.Second, 20*time.Millisecond)
	require.NoError(t, trigger.Ensure(t.Context()), "the cluster of three servers still works")
}

// hasOnlyPeers reports whether all peers of a server are servers of productionNATS.
func hasOnlyPeers(t *testing.T, s *server.Server) bool {
	t.Helper()
	routes, err := s.Routez(nil)
	require.NoError(t, err)
	return !slices.ContainsFunc(routes.Routes, func(r *server.RouteInfo) bool { return !strings.HasPrefix(r.RemoteName, "nats-") })
}

// connectWithoutTLS logs in to a server without TLS. The error is nil if the server accepts the login; the connection
// is always nil.
func connectWithoutTLS(host, user, password string) (*nats.Conn, error) {
	conn, err := net.DialTimeout("tcp", host, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT {\"user\":%q,\"pass\":%q}\r\nPING\r\n", user, password); err != nil {
		return nil, err
	}
	received := make([]byte, 0, 4096)
	for part := make([]byte, 1024); !strings.Contains(string(received), "PONG"); {
		n, err := conn.Read(part)
		if err != nil {
			return nil, err
		}
		received = append(received, part[:n]...)
	}
	return nil, nil
}
