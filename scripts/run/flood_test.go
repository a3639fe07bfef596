package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// flood starts n concurrent calls with a body of 1 MiB, and sends all bytes but the last. The calls stay open until end
// is called.
func flood(ctx context.Context, t *testing.T, address string, n int) (end func()) {
	t.Helper()
	target, err := url.Parse(address)
	require.NoError(t, err)
	body := strings.Repeat(" ", 1<<20-1)
	var conns []net.Conn
	var calls sync.WaitGroup
	for range n {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", target.Host)
		require.NoError(t, err)
		conns = append(conns, conn)
		calls.Go(func() {
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			// The server may close the connection.
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", target.RequestURI(), len(body)+1)
			_, _ = io.WriteString(conn, body)
		})
	}
	calls.Wait()
	return func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
}

func TestFloodDoesNotFillMemory(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t)
	h.waitReady(t, p)
	sink, wechat := printedOnce(t, p, `sink +(http\S+) .*`), printedOnce(t, p, `wechat +curl .* (\S+)/ledger`)
	before := residentMB(t, p.Pid())

	ctx := within(t, time.Minute)
	send := wechat + "/cgi-bin/message/subscribe/send"
	for _, address := range []string{sink, send + "?access_token=made-up", wechat + "/cgi-bin/stable_token"} {
		end := flood(ctx, t, address, 100)
		require.Less(t, residentMB(t, p.Pid())-before, 60, address)
		end()
	}
	for range 75 {
		res, err := http.Post(send, "application/json", strings.NewReader(`{"touser":"`+strings.Repeat("x", 1<<20)+`"}`))
		if err == nil {
			res.Body.Close()
		}
	}
	require.Less(t, residentMB(t, p.Pid())-before, 60)
	require.NotContains(t, p.Output(), "xxxxxx")

	h.submitSubscribeMessage(t)
	require.NoError(t, p.WaitFor(within(t, time.Minute), `wechat: delivered to oABC123: {"thing1":{"value":"瑜伽课"}}`))
	require.NoError(t, p.WaitFor(within(t, time.Minute), "received succeeded "), "the sink must still work")
}

// floodNATS keeps up to 1200 connections open that never log in, more than natsLimits allows, until end is called. full is
// closed once the server has rejected a connection.
func floodNATS(t *testing.T, host string) (full <-chan struct{}, end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	rejected := make(chan struct{})
	closeRejected := sync.OnceFunc(func() { close(rejected) })
	var all sync.WaitGroup
	for range 1200 {
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
				if err != nil {
					continue
				}
				stopClosing := context.AfterFunc(ctx, func() { conn.Close() })
				text, _ := io.ReadAll(conn) // ends when the server closes the connection
				if strings.Contains(string(text), "maximum connections exceeded") {
					closeRejected()
				}
				stopClosing()
				conn.Close()
				pause(ctx, 500*time.Millisecond)
			}
		})
	}
	return rejected, func() { stop(); all.Wait() }
}

func TestClientsConnectDuringNATSFlood(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t)
	h.waitReady(t, p)
	host := printedOnce(t, p, `nats +nats://(\S+), users .*`)
	trigger := printedOnce(t, p, `trigger +(http\S+)/metrics`)
	before := residentMB(t, p.Pid())

	full, end := floodNATS(t, host)
	defer end()
	select {
	case <-full:
	case <-time.After(30 * time.Second):
		t.Fatal("no connection was rejected")
	}
	require.Less(t, residentMB(t, p.Pid())-before, 120)
	require.Eventually(t, func() bool {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
		return err == nil && len(files) < 1024+300 // 1024 as in natsLimits, and the other files of the run
	}, time.Minute, 20*time.Millisecond, "rejected connections must be closed")
	h.submitSubscribeMessage(t)
	require.NoError(t, p.WaitFor(within(t, time.Minute), "received succeeded "), "existing connections must stay open")

	pid := 0
	_, err := fmt.Sscan(printedOnce(t, p, `start +trigger \(pid (\d+)\)`), &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.NoError(t, p.WaitFor(within(t, time.Minute), "restarting in"))
	began := time.Now()
	require.Eventually(t, func() bool {
		res, err := http.Get(trigger + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "a new client must be able to connect")
	t.Logf("memory +%d MB, connected again after %v", residentMB(t, p.Pid())-before, time.Since(began).Round(time.Millisecond))
}

// residentMB returns the resident memory of a process in MB.
func residentMB(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("this system does not show the memory of a process")
	}
	kb := 0
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	_, err = fmt.Sscan(rest, &kb)
	require.NoError(t, err)
	return kb >> 10
}
