package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	refuserConnections = 128
	killedRunTimeout   = 3 * time.Second // how long a new run waits for the processes of a killed run to end
)

// reservedPort is the port of the API. It stays open during the whole run, even while no server runs: otherwise another
// program could listen on the port and receive the passwords of callers.
type reservedPort struct {
	listener *net.TCPListener
	socket   *os.File // a copy, for the server process or the activator
	refusing sync.Once
	refuser  *httpserver.Server // responds with 503 to every call
}

// reservePort listens on the port of s. It waits up to killedRunTimeout for a port that is in use. New connections wait
// until a server accepts them.
func reservePort(ctx context.Context, s settings) (*reservedPort, error) {
	var listener *net.TCPListener
	err := error(syscall.EADDRINUSE)
	for started := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(started) < killedRunTimeout; {
		if listener, err = listenLocally(ctx, s.port); err != nil && !pause(ctx, 50*time.Millisecond) {
			break
		}
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is taken: stop what listens there or set PORT to another", s.port)
	}
	if err != nil {
		return nil, fmt.Errorf("port %d cannot be used: %w", s.port, err)
	}
	socket, err := listener.File()
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	refuser := httpserver.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { respondBusy(w, "", errEnding) }), refuserConnections, nil)
	refuser.ReadTimeout = 5 * time.Second
	refuser.SetKeepAlivesEnabled(false)
	return &reservedPort{listener: listener, socket: socket, refuser: refuser}, nil
}

// lockHome prevents other runs in home until the returned file is closed or this process ends. It waits up to
// killedRunTimeout for another run to end.
func lockHome(ctx context.Context, home string) (*os.File, error) {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	for started := time.Now(); ; {
		lock, err := sandbox.LockFile(filepath.Join(home, "lock"), "another run")
		if err == nil || time.Since(started) >= killedRunTimeout || !pause(ctx, 50*time.Millisecond) {
			return lock, err
		}
	}
}

// refuse starts to respond with 503 to each call that reaches the port and no server. Use it when the server has ended or
// is about to end. If refuse was used before, it does nothing.
func (p *reservedPort) refuse() {
	p.refusing.Do(func() {
		// A child that ended early may have left the socket in blocking mode.
		if raw, err := p.listener.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.SetNonblock(int(fd), true) })
		}
		go func() { _ = p.refuser.Serve(p.listener) }() // until close
	})
}

// close frees the port.
func (p *reservedPort) close() {
	_ = p.socket.Close()
	_ = p.listener.Close()
	_ = p.refuser.Close()
}

// listenOnSavedPort listens on the loopback port that an earlier run saved under name, so that clients find each run at
// the same port. If no port was saved, or if the saved port is taken, listenOnSavedPort saves a free port below 32768:
// while no run has the port, the system does not assign it to a connection of another program.
func listenOnSavedPort(ctx context.Context, home, name string, out io.Writer) (*net.TCPListener, error) {
	file := filepath.Join(home, name+".port")
	saved := savedPort(file)
	if saved != 0 {
		if listener, err := listenLocally(ctx, saved); err == nil {
			return listener, nil
		}
		printStep(out, name, fmt.Sprintf("port %d of earlier runs is taken; a new one is used from now on", saved))
	}
	port, err := sandbox.FreePort()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(port)+"\n"), 0o644); err != nil {
		return nil, err
	}
	return listenLocally(ctx, port)
}

// savedPort reads a port from a file. It returns 0 if the file cannot be read or has no port.
func savedPort(file string) int {
	text, _ := os.ReadFile(file)
	port, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// listenLocally listens on a loopback port; 0 = any free port.
func listenLocally(ctx context.Context, port int) (*net.TCPListener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", loopback+":"+strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}

func portOf(listener *net.TCPListener) int { return listener.Addr().(*net.TCPAddr).Port }
