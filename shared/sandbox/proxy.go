package sandbox

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy is a TCP proxy that injects network faults between clients and a Postgres. All methods
// may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	url      string

	loseCancels atomic.Bool
	running     sync.WaitGroup

	mu      sync.Mutex
	network string     // of the server: tcp or unix
	address string     // of the server
	resumed *sync.Cond // signalled by Resume and Cut
	conns   map[*proxyConn]struct{}
	cut     bool
	stalled bool
	losses  []loss // from calls of LoseResponse that no statement has matched yet
}

// loss is a call of LoseResponse: the response to the first matching statement is lost.
type loss struct {
	matches func(statement string) bool
	done    chan struct{} // closed when the response is lost
}

// NewProxy is StartProxy until the end of the test.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	p, err := StartProxy(databaseURL)
	must(t, err)
	t.Cleanup(p.Close)
	return p
}

// StartProxy starts a proxy in front of the server of databaseURL until Close. Clients connect to the proxy without
// TLS.
func StartProxy(databaseURL string) (*Proxy, error) {
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, conns: map[*proxyConn]struct{}{}}
	p.resumed = sync.NewCond(&p.mu)
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	u := url.URL{
		Scheme: "postgres", User: url.User(config.User), Host: listener.Addr().String(), Path: "/" + config.Database,
		RawQuery: "sslmode=disable",
	}
	if config.Password != "" {
		u.User = url.UserPassword(config.User, config.Password)
	}
	p.url = u.String()
	p.running.Go(p.accept)
	return p, nil
}

// Close closes the port and all connections.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Cut()
	p.running.Wait()
}

// URL returns the connection string through the proxy, with the user and the database of the server's URL.
func (p *Proxy) URL() string { return p.url }

// Cut closes all connections, and every new connection until Restore. Bytes in transit are lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		c.close()
	}
	p.resumed.Broadcast()
}

// Restore accepts new connections again.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// SetServer makes new connections go to the server of databaseURL, and closes all connections to the previous server.
func (p *Proxy) SetServer(databaseURL string) error {
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	for c := range p.conns {
		c.close()
	}
	return nil
}

// Stall holds back all messages in both directions until Resume. Connections stay open, and new connections are
// accepted.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = true
}

// Resume delivers the messages that Stall held back, and forwards again.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = false
	p.resumed.Broadcast()
}

// LoseCancels loses all later requests to cancel a statement. A client sends such a request over a new connection.
func (p *Proxy) LoseCancels() { p.loseCancels.Store(true) }

// LoseResponse loses the response to the next statement for whose SQL text matches returns true. The
// proxy forwards the statement, waits until the server has executed it and is ready for the
// next query, closes the connection, and closes done. A prepared statement is matched when
// it is executed.
func (p *Proxy) LoseResponse(matches func(statement string) bool) (done <-chan struct{}) {
	l := loss{matches, make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses = append(p.losses, l)
	return l.done
}

// Containing returns a function for LoseResponse that matches statements that contain text, ignoring case.
func Containing(text string) func(statement string) bool {
	text = strings.ToLower(text)
	return func(statement string) bool { return strings.Contains(strings.ToLower(statement), text) }
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// serve forwards one connection until either side closes it.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	network, address := p.network, p.address
	p.mu.Unlock()
	server, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return
	}
	c := &proxyConn{proxy: p, client: client, server: server, statements: map[string]string{}, portals: map[string]string{}}
	defer c.close()
	p.mu.Lock()
	refused := p.cut || address != p.address // Cut or SetServer was called during the dial
	if !refused {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()
	if refused {
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { defer c.close(); c.fromClient() })
	directions.Go(func() { defer c.close(); c.fromServer() })
	directions.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

func (p *Proxy) waitWhileStalled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled && !p.cut {
		p.resumed.Wait()
	}
}

// takeLoss removes the first loss that matches the statement, and returns it. It returns nil if none matches.
func (p *Proxy) takeLoss(statement string) *loss {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.losses {
		if l.matches(statement) {
			p.losses = slices.Delete(p.losses, i, i+1)
			return &l
		}
	}
	return nil
}

// proxyConn is one connection through the proxy.
type proxyConn struct {
	proxy          *Proxy
	client, server net.Conn

	// The SQL text of the client's prepared statements and portals, by name.
	statements, portals map[string]string

	mu      sync.Mutex
	open    int   // query cycles (see inspect) whose last message was sent, and whose ReadyForQuery has not arrived
	loss    *loss // the response that is being lost; if set, nothing more is sent to the client
	lossEnd int   // how many more ReadyForQuery end the query cycle of loss; 0 = the last message of this cycle has not been sent
}

func (c *proxyConn) close() {
	// With SetLinger(0), Close resets the connection: bytes in transit are lost.
	_ = c.client.(*net.TCPConn).SetLinger(0)
	c.client.Close()
	c.server.Close()
}

// The numbers that a client may send instead of a protocol version.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

const startupHeader = 8 // bytes at the start of a connection: the length of the message, and the protocol version

// fromClient refuses TLS, and then forwards the startup message and all later messages of the client.
func (c *proxyConn) fromClient() {
	in, out := bufio.NewReader(c.client), bufio.NewWriter(c.server)
	for {
		startup, err := in.Peek(startupHeader)
		if err != nil {
			return
		}
		code := binary.BigEndian.Uint32(startup[4:])
		if code == cancelRequest && c.proxy.loseCancels.Load() {
			return
		}
		if code != sslRequest && code != gssRequest {
			break
		}
		if _, err := in.Discard(startupHeader); err != nil {
			return
		}
		if _, err := c.client.Write([]byte{'N'}); err != nil {
			return
		}
	}
	c.cycleSent()
	if err := c.forward(in, out, 0, nil); err != nil {
		return
	}
	for {
		kind, err := in.ReadByte()
		if err != nil {
			return
		}
		if err := c.forward(in, out, kind, c.inspect); err != nil {
			return
		}
	}
}

// fromServer forwards the messages of the server, except those that LoseResponse loses.
func (c *proxyConn) fromServer() {
	in, out := bufio.NewReader(c.server), bufio.NewWriter(c.client)
	for {
		kind, err := in.ReadByte()
		if err != nil {
			return
		}
		lost, complete := c.observeResponse(kind)
		to := out
		if lost {
			to = bufio.NewWriter(io.Discard)
		}
		if err := c.forward(in, to, kind, nil); err != nil {
			return
		}
		if complete != nil {
			c.close()
			close(complete.done)
			return
		}
	}
}

// forward copies one message after inspect has read its body. kind is the first byte of the message,
// which has been read already; 0 = a startup message, which has no such byte. forward flushes the
// output when no more input waits.
func (c *proxyConn) forward(in *bufio.Reader, out *bufio.Writer, kind byte, inspect func(kind byte, body []byte)) error {
	header := make([]byte, 4)
	if _, err := io.ReadFull(in, header); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(header)
	if size < 4 || size > 1<<30 {
		return fmt.Errorf("message of %d bytes", size)
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(in, body); err != nil {
		return err
	}
	c.proxy.waitWhileStalled()
	if inspect != nil {
		inspect(kind, body)
	}
	if kind != 0 {
		header = append([]byte{kind}, header...)
	}
	if _, err := out.Write(append(header, body...)); err != nil {
		return err
	}
	if in.Buffered() > 0 {
		return nil
	}
	return out.Flush()
}

// inspect records the names of statements and portals, which statement is executed, and the end of a query cycle. A
// query cycle is the messages of the client up to a Query, Sync or FunctionCall; the server ends its response to them
// with one ReadyForQuery.
func (c *proxyConn) inspect(kind byte, body []byte) {
	switch kind {
	case 'P': // Parse: name, SQL
		name, rest := cString(body)
		c.statements[name], _ = cString(rest)
	case 'B': // Bind: portal, statement
		portal, rest := cString(body)
		name, _ := cString(rest)
		c.portals[portal] = c.statements[name]
	case 'E': // Execute: portal
		portal, _ := cString(body)
		c.statementExecuted(c.portals[portal])
	case 'Q': // Query
		sql, _ := cString(body)
		c.statementExecuted(sql)
		c.cycleSent()
	case 'S', 'F': // Sync, FunctionCall
		c.cycleSent()
	}
}

// cString returns the text before the first zero byte of b, and the bytes after it.
func cString(b []byte) (text string, rest []byte) {
	before, after, _ := bytes.Cut(b, []byte{0})
	return string(before), after
}

func (c *proxyConn) statementExecuted(statement string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loss == nil {
		c.loss = c.proxy.takeLoss(statement)
	}
}

// cycleSent counts a query cycle whose last message is being forwarded. The startup counts as a cycle, because the
// server ends it with ReadyForQuery too.
func (c *proxyConn) cycleSent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	if c.loss != nil && c.lossEnd == 0 {
		c.lossEnd = c.open
	}
}

// observeResponse is called for each message of the server. lost means that the client must not receive the message.
// complete is the loss that ends with the message, or nil.
func (c *proxyConn) observeResponse(kind byte) (lost bool, complete *loss) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost = c.loss != nil
	if kind != 'Z' { // ReadyForQuery
		return lost, nil
	}
	c.open--
	if c.lossEnd > 0 {
		if c.lossEnd--; c.lossEnd == 0 {
			return lost, c.loss
		}
	}
	return lost, nil
}
