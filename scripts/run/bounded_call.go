package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
)

// The time limits of a forwarded call. They are longer than those of the function, so that the function responds first.
const (
	bodyTimeout       = 12 * time.Second
	unreadBodyTimeout = time.Second      // for the rest of a body after the response has begun
	writeTimeout      = time.Minute      // for each write of a response
	socketTimeout     = 10 * time.Second // for each write to the client of a WebSocket, as in the function
)

// boundedCall is a call that the activator forwards, and the writer of its response. If there are too many connections,
// the server closes connections whose body has not arrived completely. A connection whose body has arrived stays open,
// because the function rejects a call without credentials at once.
type boundedCall struct {
	http.ResponseWriter
	connection *http.ResponseController
	ctx        context.Context

	mu                sync.Mutex // guards the fields below: the body is read by another goroutine
	received, ended   bool
	releaseConnection func()
}

// newBoundedCall sets the limits of a call. The caller must call end.
func newBoundedCall(w http.ResponseWriter, r *http.Request) *boundedCall {
	c := &boundedCall{ResponseWriter: w, connection: http.NewResponseController(w), ctx: r.Context(), releaseConnection: func() {}}
	if r.ContentLength == 0 {
		c.setReceived()
		return c
	}
	httpserver.KeepConnectionOpen(c.ctx)() // makes the connection the most recently used one
	c.limitBody(bodyTimeout)
	r.Body = callBody{r.Body, c}
	return c
}

func (c *boundedCall) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.releaseConnection()
}

// setReceived records that the whole body has arrived. It removes the read deadline: an expired deadline would cancel
// the call.
func (c *boundedCall) setReceived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.received && !c.ended {
		c.received = true
		c.releaseConnection = httpserver.KeepConnectionOpen(c.ctx)
		_ = c.connection.SetReadDeadline(time.Time{}) // fails on a connection that has ended
	}
}

func (c *boundedCall) hasReceived() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

func (c *boundedCall) limitBody(limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.received {
		_ = c.connection.SetReadDeadline(time.Now().Add(limit)) // fails on a connection that has ended
	}
}

// WriteHeader implements http.ResponseWriter. It drops status 100: net/http itself sends this status to a client that
// expects it.
func (c *boundedCall) WriteHeader(status int) {
	if status == http.StatusContinue {
		return
	}
	if status >= http.StatusOK {
		c.limitBody(unreadBodyTimeout)
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. The limit is for each write, not for the whole response.
func (c *boundedCall) Write(p []byte) (int, error) {
	_ = c.connection.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on a connection that has ended
	return c.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker.
func (c *boundedCall) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := c.connection.Hijack()
	return socketConn{conn}, rw, err
}

// socketConn is the connection of a WebSocket to the client. If the client does not read, the function closes its own
// connection. Without a deadline, this process would still try forever to write the rest of the data to the client.
type socketConn struct{ net.Conn }

func (c socketConn) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(socketTimeout)) // fails on a connection that has ended
	return c.Conn.Write(p)
}

// Unwrap is for http.ResponseController.
func (c *boundedCall) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// callBody is the body of a call.
type callBody struct {
	io.ReadCloser
	call *boundedCall
}

// Read implements io.Reader. http.Transport reads once more at the end of a body, and drops the response
// if that read fails. net/http may have closed the body before, because the response has begun.
func (b callBody) Read(p []byte) (int, error) {
	if b.call.hasReceived() {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.call.setReceived()
	}
	return n, err
}
