package main

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// gate is a way to Postgres that can be shut: it then holds all bytes, and no
// connection breaks. It only copies, as sandbox.Proxy, which reads what passes,
// would use the cores that are measured.
type gate struct {
	listener         net.Listener
	network, address string
	url              string       // leads through the gate
	shut             sync.RWMutex // locked while it is shut; bytes pass it as readers
	running          sync.WaitGroup
	end              context.Context // closes all connections
	stop             context.CancelFunc
}

func openGate(database string) (*gate, error) {
	config, err := pgconn.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	user := url.User(config.User)
	if config.Password != "" {
		user = url.UserPassword(config.User, config.Password)
	}
	u := url.URL{Scheme: "postgres", User: user, Host: listener.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable"}
	g := &gate{listener: listener, url: u.String()}
	g.network, g.address = pgconn.NetworkAddress(config.Host, config.Port)
	g.end, g.stop = context.WithCancel(context.Background())
	g.running.Go(g.accept)
	return g, nil
}

// close needs the gate open.
func (g *gate) close() error {
	g.stop()
	err := g.listener.Close()
	g.running.Wait()
	return err
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			g.running.Go(func() { g.serve(client) })
		}
	}
}

func (g *gate) serve(client net.Conn) {
	defer client.Close()
	server, err := net.DialTimeout(g.network, g.address, callTimeout)
	if err != nil {
		return // as if the server had refused
	}
	defer server.Close()
	ended, end := context.WithCancel(g.end)
	var ways sync.WaitGroup
	ways.Go(func() { defer end(); g.copy(server, client) })
	ways.Go(func() { defer end(); g.copy(client, server) })
	<-ended.Done()
	client.Close()
	server.Close()
	ways.Wait()
}

func (g *gate) copy(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if err := g.pass(to, buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (g *gate) pass(to net.Conn, b []byte) error {
	g.shut.RLock()
	defer g.shut.RUnlock()
	_, err := to.Write(b)
	return err
}
