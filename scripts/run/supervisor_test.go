package main

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// shell returns a function that starts a shell script.
func shell(script string) func() (*sandbox.Process, error) {
	return func() (*sandbox.Process, error) {
		return sandbox.Start(sandbox.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ()})
	}
}

func TestSupervisorBacksOff(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	s, err := supervise("child", shell("exit 1"), out, time.Millisecond)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "in 1.024s") }, time.Minute, 10*time.Millisecond)
	code, err := s.Terminate(time.Second)
	require.NoError(t, err)
	require.Zero(t, code, "no process runs during a pause, and this pause lasts until Terminate")
	pauses := regexp.MustCompile(`unexpectedly: exit status 1; restarting in (\S+)\n`).FindAllStringSubmatch(out.String(), 6)
	require.Len(t, pauses, 6)
	for i, pause := range pauses {
		require.Equal(t, fmt.Sprintf("%dms", 1<<i), pause[1])
	}
}

func TestSupervisorStopsOnBadSettings(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	s, err := supervise("child", shell("echo SETTING is wrong; exit 2"), out, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, s.ExitCode())
	require.Equal(t, "SETTING is wrong\n", s.Output())
	require.NotContains(t, out.String(), "restarting")
}

func TestSupervisorTerminate(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	s, err := supervise("child", shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"), out, time.Millisecond)
	require.NoError(t, err)
	require.NoError(t, s.current().WaitFor(within(t, time.Minute), "up"))
	code, err := s.Terminate(20 * time.Second)
	require.NoError(t, err)
	require.Zero(t, code)
	require.True(t, hasEnded(s))
	require.Equal(t, 1, strings.Count(out.String(), "start"))
}

func TestKilledTriggerIsRestarted(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	metrics, err := sandbox.FreePort()
	require.NoError(t, err)
	p := h.start(t, fmt.Sprintf("SENDONCE_METRICS=%d", metrics)) // the metrics port of the server, not of the trigger
	h.waitReady(t, p)
	address, pid := printedOnce(t, p, `trigger +(http\S+)`), waitForPid(t, p, "trigger", 1)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.NoError(t, p.WaitFor(within(t, time.Minute), fmt.Sprintf("ended     trigger (pid %d) unexpectedly: signal: killed; restarting in 200ms\n", pid)))
	waitForPid(t, p, "trigger", 2)

	id := idOf(t, h.submit(t, "after", "hello"))
	require.NoError(t, p.WaitFor(within(t, time.Minute), "sent to 138****8000: hello\n"))
	require.Eventually(t, func() bool {
		return regexp.MustCompile(`received succeeded.*` + id).MatchString(p.Output())
	}, time.Minute, 10*time.Millisecond, "the sink must receive the webhook of the task")
	require.NoError(t, p.WaitReady(within(t, time.Minute), address), "the new process must have the same port")
	require.NoError(t, p.WaitReady(within(t, time.Minute), fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics)))
	status, _ := h.call(t, http.MethodGet, "/metrics", "")
	require.Equal(t, http.StatusNotFound, status)
}
