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

	"github.com/sendonce/sendonce/shared/sandbox"
)

const refusedAtOnce = 128 // connections

// leftoverTimeout is how long what a killed run has left behind may take to end.
const leftoverTimeout = 3 * time.Second

// heldPort is the port of the API. It is open from the first moment of a run to the
// last one, whether or not a server runs: whoever else could listen there would be
// sent the passwords of all that call it.
type heldPort struct {
	listener *net.TCPListener
	socket   *os.File // a copy, for the server process
	refusing sync.Once
	refuser  http.Server
}

// holdPort listens on the port of s. Connections wait until a server accepts them.
func holdPort(ctx context.Context, s settings) (*heldPort, error) {
	var listener *net.TCPListener
	err := error(syscall.EADDRINUSE)
	for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < leftoverTimeout; {
		if listener, err = listenLocally(ctx, s.port); err != nil {
			pause(ctx, 50*time.Millisecond)
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
	return &heldPort{listener: listener, socket: socket}, nil
}

// lockHome keeps other runs out of home, until the file is closed or this process ends.
func lockHome(ctx context.Context, home string) (*os.File, error) {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
		lock, err := sandbox.LockFile(filepath.Join(home, "lock"), "another one")
		if err == nil || time.Since(began) >= leftoverTimeout || !pause(ctx, 50*time.Millisecond) {
			return lock, err
		}
	}
}

// refuse answers 503 to all further connections, as no server accepts them any more.
func (p *heldPort) refuse() {
	p.refusing.Do(func() {
		// A child that ended early may have left the socket in blocking mode.
		if raw, err := p.listener.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.SetNonblock(int(fd), true) })
		}
		p.refuser.ReadHeaderTimeout, p.refuser.ReadTimeout = 5*time.Second, 5*time.Second
		p.refuser.SetKeepAlivesEnabled(false)
		p.refuser.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { busy(w, "", errEnding) })
		go func() { _ = p.refuser.Serve(sandbox.LimitConnections(p.listener, refusedAtOnce)) }() // until close
	})
}

// close frees the port.
func (p *heldPort) close() {
	_ = p.socket.Close()
	_ = p.listener.Close()
	_ = p.refuser.Close()
}

// listenAsBefore listens on the loopback port that earlier runs had under name,
// else on a free one that later runs will have: whoever works beside us finds us
// again.
func listenAsBefore(ctx context.Context, home, name string, out io.Writer) (*net.TCPListener, error) {
	file := filepath.Join(home, name+".port")
	kept := keptPort(file)
	listener, err := listenLocally(ctx, kept)
	if err != nil && kept != 0 {
		progress(out, name, fmt.Sprintf("port %d of earlier runs is taken; there is a new one from now on", kept))
		listener, err = listenLocally(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	if port := portOf(listener); port != kept {
		if err := os.WriteFile(file, []byte(strconv.Itoa(port)+"\n"), 0o644); err != nil {
			listener.Close()
			return nil, err
		}
	}
	return listener, nil
}

// keptPort is 0 when file does not name a port.
func keptPort(file string) int {
	// What cannot be read is written anew.
	text, _ := os.ReadFile(file)
	port, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// listenLocally takes a free port when port is 0.
func listenLocally(ctx context.Context, port int) (*net.TCPListener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", loopback+":"+strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}

func portOf(listener *net.TCPListener) int { return listener.Addr().(*net.TCPAddr).Port }
