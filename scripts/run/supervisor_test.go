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

func shell(script string) func() (*sandbox.Process, error) {
	return func() (*sandbox.Process, error) {
		return sandbox.Start(sandbox.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ()})
	}
}

func TestSupervisorBacksOff(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	k, err := supervise("it", shell("exit 1"), out, time.Millisecond)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "in 32ms") }, 20*time.Second, time.Millisecond)
	code, err := k.Terminate(time.Second)
	require.NoError(t, err)
	require.Zero(t, code)
	pauses := regexp.MustCompile(`by itself: exit status 1; starts again in (\S+)\n`).FindAllStringSubmatch(out.String(), 6)
	require.Len(t, pauses, 6)
	for i, pause := range pauses {
		require.Equal(t, fmt.Sprintf("%dms", 1<<i), pause[1])
	}
}

func TestSupervisorStopsOnBadSettings(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	k, err := supervise("it", shell("echo SETTING is wrong; exit 2"), out, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, k.ExitCode())
	require.Equal(t, "SETTING is wrong\n", k.Output())
	require.NotContains(t, out.String(), "again")
}

func TestSupervisorTerminate(t *testing.T) {
	t.Parallel()
	out := &sandbox.LogBuffer{}
	k, err := supervise("it", shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"), out, time.Millisecond)
	require.NoError(t, err)
	require.NoError(t, k.current().WaitFor(within(t, 20*time.Second), "up"))
	code, err := k.Terminate(20 * time.Second)
	require.NoError(t, err)
	require.Zero(t, code)
	require.True(t, hasEnded(k))
	require.Equal(t, 1, strings.Count(out.String(), "start"))
}

func TestKilledTriggerIsRestarted(t *testing.T) {
	t.Parallel()
	h := newTestRun(t)
	metrics, err := sandbox.FreePort()
	require.NoError(t, err)
	p := h.start(t, fmt.Sprintf("SENDONCE_METRICS=%d", metrics)) // the port of the server, not of the trigger
	h.ready(t, p)
	address, first := printedOnce(t, p, `trigger +(http\S+)`), started(t, p, "trigger", 1)
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	require.NoError(t, p.WaitFor(within(t, 20*time.Second), fmt.Sprintf("ended     trigger (pid %d) by itself: signal: killed; starts again in 200ms\n", first)))
	started(t, p, "trigger", 2)

	answer := h.submit(t, "after", "hello")
	id := regexp.MustCompile(`"task_id":"([^"]+)"`).FindStringSubmatch(answer)[1]
	require.NoError(t, p.WaitFor(within(t, 30*time.Second), "sent to 138****8000: hello\n"))
	require.Eventually(t, func() bool {
		return regexp.MustCompile(`received succeeded.*` + id).MatchString(p.Output())
	}, 30*time.Second, 10*time.Millisecond, "the sink receives the webhook of the task")
	require.NoError(t, p.WaitReady(within(t, 20*time.Second), address), "on the same port")
	require.NoError(t, p.WaitReady(within(t, 20*time.Second), fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics)))
	status, _ := h.call(t, http.MethodGet, "/metrics", "")
	require.Equal(t, http.StatusNotFound, status)
}
