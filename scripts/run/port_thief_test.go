package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// portThief stands for another program that listens on a port as soon as the port is free, and reads the passwords that
// are sent to the port.
type portThief struct {
	listens atomic.Bool
	stolen  atomic.Pointer[string] // the first call with a password
	done    chan struct{}
}

// watchPort waits until the run p has opened the port of the API, and starts a thief on this port.
func (h testRun) watchPort(t *testing.T, p *sandbox.Process) *portThief {
	t.Helper()
	require.NoError(t, p.WaitFor(within(t, time.Minute), "build "))
	thief := &portThief{done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); <-thief.done })
	go func() {
		defer close(thief.done)
		thief.run(ctx, h.port)
	}()
	return thief
}

func (thief *portThief) run(ctx context.Context, port int) {
	for pause(ctx, time.Millisecond) {
		listener, err := listenLocally(ctx, port)
		if err != nil {
			continue
		}
		thief.listens.Store(true)
		context.AfterFunc(ctx, func() { listener.Close() })
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			thief.read(conn)
		}
	}
}

func (thief *portThief) read(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	call := make([]byte, 4096)
	length, _ := conn.Read(call)
	if call = call[:length]; bytes.Contains(call, []byte("Authorization: ")) {
		text := string(call)
		thief.stolen.CompareAndSwap(nil, &text)
	}
	fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
}

// serverPid returns the id of the server process of a run without PROCS=1.
func (h testRun) serverPid(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range all {
		// A process may have ended meanwhile.
		line, _ := os.ReadFile(file)
		if string(line) == filepath.Join(h.home, "bin", "sendonce")+"\x00" {
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			require.NoError(t, err)
			return pid
		}
	}
	t.Skip("this system does not show the processes")
	return 0
}

func TestPortIsNeverFreeDuringRun(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t)
	thief := h.watchPort(t, p)
	h.waitReady(t, p)
	require.False(t, thief.listens.Load(), "the port was free during the start of the run")
	h.submit(t, "first", "hello")
	require.NoError(t, p.WaitFor(within(t, time.Minute), "sent to 138****8000: hello\n"))

	require.NoError(t, syscall.Kill(h.serverPid(t), syscall.SIGKILL))
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "make run: the server ended unexpectedly with -1")
	require.Eventually(t, thief.listens.Load, 10*time.Second, 10*time.Millisecond)
	require.Nil(t, thief.stolen.Load(), "after the end of the run, no process of it may send a password to the port")
}
