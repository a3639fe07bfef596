package main

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestWebSocketReachesProcess(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "PROCS_IDLE=1s", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, p)
	client := api.NewClient(h.url(), "admin", h.password(t))
	open := func(after *int64) *api.Socket {
		t.Helper()
		socket, err := client.Socket(t.Context(), "ann", api.StreamRequest{After: after})
		require.NoError(t, err)
		t.Cleanup(func() { _ = socket.Close() })
		return socket
	}
	exchange := func(s *api.Socket, key string) {
		t.Helper()
		require.NoError(t, s.Send(t.Context(), api.MessageRequest{ClientMsgID: key, To: "user:ann", Data: api.JSON(`1`)}))
		var got []string
		for range 3 {
			f, err := s.Next(within(t, time.Minute))
			require.NoError(t, err)
			got = append(got, f.Event)
		}
		require.ElementsMatch(t, []string{api.SocketMark, api.StreamAck, api.StreamMessage}, got)
	}
	first := open(nil)
	exchange(first, "c-1")
	pid := waitForPid(t, p, "stream", 1)
	require.Never(t, func() bool { return hasExited(pid) }, 2*time.Second, 50*time.Millisecond, "a process must not end while a socket is open")

	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	_, err := first.Next(within(t, time.Minute))
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the socket must end with its process")

	// Until `make run` detects the end, a call may still go to the killed process.
	require.NoError(t, p.WaitFor(within(t, time.Minute), fmt.Sprintf("ended     stream (pid %d) unexpectedly", pid)))
	second := open(first.After())
	exchange(second, "c-2")
	waitForPid(t, p, "stream", 2)
	require.NoError(t, p.Signal(syscall.SIGTERM))
	_, err = second.Next(within(t, time.Minute))
	require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
	select {
	case <-p.Exited(): // a second SIGTERM, of the cleanup, would end `make run` before Postgres
	case <-time.After(time.Minute):
		require.Fail(t, "make run has not ended")
	}
}
