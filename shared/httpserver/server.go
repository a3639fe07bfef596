// Package httpserver has an http.Server for clients that are not trusted. It supports only HTTP/1,
// and limits the number of connections, the lines and memory of headers, and the time of each request.
package httpserver

import (
	"log"
	"net"
	"net/http"
	"time"
)

const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10

	// readTimeout limits the time to read a request, and also the time to handle it: when readTimeout is over, net/http
	// cancels the context of the request. readTimeout and WriteTimeout are longer than the longest poll.
	readTimeout = 60 * time.Second

	// WriteTimeout limits the time from the header of a request to the end of its response.
	WriteTimeout = 60 * time.Second
)

// Server is made by New.
type Server struct {
	http.Server
	headers     headerMemory
	connections *connectionLimiter
}

// New returns a server for h. For each connection above maxConnections, or above three quarters of the files that the
// process may open, the server closes a connection for which KeepConnectionOpen is not in effect. The other files are
// for connections to other servers. The server logs problems of connections to errorLog.
func New(h http.Handler, maxConnections int, errorLog *log.Logger) *Server {
	s := &Server{headers: headerMemory{max: maxHeaderMemory}, connections: newConnectionLimiter(min(maxConnections, maxOpenFiles()/4*3)), Server: http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      WriteTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes - 4<<10, // net/http reads 4 KiB more
		ErrorLog:          errorLog,
		Protocols:         new(http.Protocols),
	}}
	s.ConnContext = s.connections.add
	s.ConnState = func(conn net.Conn, state http.ConnState) { conn.(*connection).state(state) }
	// The gateways of deploy/ use HTTP/1.1. HTTP/2 is not supported: net/http does not limit the rate
	// of its control frames, so anybody could send them without end.
	s.Protocols.SetHTTP1(true)
	return s
}

// Serve replaces http.Server.Serve.
func (s *Server) Serve(l net.Listener) error {
	return s.Server.Serve(listener{l, &s.headers, s.connections})
}
