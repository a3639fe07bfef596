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

	"github.com/sendonce/sendonce/shared/fn"
)

// The limits of a call that is forwarded. The function has shorter ones, so that it responds first.
const (
	bodyLimit       = 12 * time.Second
	unreadBodyLimit = time.Second      // for the rest of a body once the call gets its response
	writeLimit      = time.Minute      // for each part of a response
	socketLimit     = 10 * time.Second // for each part of what a WebSocket's client gets, as in the function
)

// boundedCall is a call that the activator forwards, and the writer of its response. Its connection is
// kept open once its body has arrived: a call without credentials is then refused at once.
type boundedCall struct {
	http.ResponseWriter
	connection *http.ResponseController
	ctx        context.Context

	mu                sync.Mutex // guards the fields below: the body is read by another goroutine
	received, ended   bool
	releaseConnection func()
}

// newBoundedCall sets the limits of a call. end must follow.
func newBoundedCall(w http.ResponseWriter, r *http.Request) *boundedCall {
	c := &boundedCall{ResponseWriter: w, connection: http.NewResponseController(w), ctx: r.Context(), releaseConnection: func() {}}
	if r.ContentLength == 0 {
		c.setReceived()
		return c
	}
	fn.KeepConnectionOpen(c.ctx)() // it is now the last that was used
	c.limitBody(bodyLimit)
	r.Body = callBody{r.Body, c}
	return c
}

func (c *boundedCall) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.releaseConnection()
}

// setReceived notes that the body has arrived: reading from the connection has no limit any more, as
// its end would cancel the call.
func (c *boundedCall) setReceived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.received && !c.ended {
		c.received = true
		c.releaseConnection = fn.KeepConnectionOpen(c.ctx)
		_ = c.connection.SetReadDeadline(time.Time{}) // fails on a connection that has ended
	}
}

func (c *boundedCall) limitBody(limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.received {
		_ = c.connection.SetReadDeadline(time.Now().Add(limit)) // fails on a connection that has ended
	}
}

// WriteHeader is http.ResponseWriter's. The client of a call gets 100 only if it wants to.
func (c *boundedCall) WriteHeader(status int) {
	if status == http.StatusContinue {
		return // net/http sends it
	}
	if status >= http.StatusOK {
		c.limitBody(unreadBodyLimit)
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write is http.ResponseWriter's. A response may take longer than all of its parts may.
func (c *boundedCall) Write(p []byte) (int, error) {
	_ = c.connection.SetWriteDeadline(time.Now().Add(writeLimit)) // fails on a connection that has ended
	return c.ResponseWriter.Write(p)
}

// Hijack is http.Hijacker's.
func (c *boundedCall) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := c.connection.Hijack()
	return socketConn{conn}, rw, err
}

// socketConn is the connection of a WebSocket. The function ends a socket whose client does not read, but
// what it had sent would wait here without end.
type socketConn struct{ net.Conn }

func (c socketConn) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(socketLimit)) // fails on a connection that has ended
	return c.Conn.Write(p)
}

// Unwrap is for http.ResponseController.
func (c *boundedCall) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// callBody is the body of a call.
type callBody struct {
	io.ReadCloser
	call *boundedCall
}

func (b callBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.call.setReceived()
	}
	return n, err
}
