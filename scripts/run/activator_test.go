package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/httpserver"
	"github.com/sendonce/sendonce/shared/sandbox"
	appsettings "github.com/sendonce/sendonce/shared/settings"
)

// call makes one call as the admin and returns its status and body.
func (h testRun) call(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, h.url()+path, strings.NewReader(body))
	require.NoError(t, err)
	req.SetBasicAuth("admin", h.password(t))
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	response, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(response)
}

type pollResult struct {
	status int
	err    error
}

// startPoll sends a claim that waits up to 30 s. It returns a function that waits for the result of the claim.
func (h testRun) startPoll(t *testing.T) func() pollResult {
	t.Helper()
	sent, result := make(chan struct{}), make(chan pollResult, 1)
	traced := httptrace.WithClientTrace(within(t, time.Minute), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) }})
	req, err := http.NewRequestWithContext(traced, http.MethodGet, h.url()+"/api/v1/sms/tasks/pending?app_id=a&wait=30", nil)
	require.NoError(t, err)
	req.SetBasicAuth("admin", h.password(t))
	go func() {
		client := http.Client{Transport: &http.Transport{}} // a new connection, so that the request is not sent twice
		res, err := client.Do(req)
		if err != nil {
			result <- pollResult{err: err}
			return
		}
		res.Body.Close()
		result <- pollResult{status: res.StatusCode}
	}()
	<-sent
	return func() pollResult { return <-result }
}

// pids returns the ids of all processes that the run has started for a function or the trigger, as printed.
func pids(t *testing.T, p *sandbox.Process, function string) []int {
	t.Helper()
	var all []int
	for _, match := range regexp.MustCompile(`(?m)^start +`+function+` \(pid (\d+)\)$`).FindAllStringSubmatch(p.Output(), -1) {
		pid, err := strconv.Atoi(match[1])
		require.NoError(t, err)
		all = append(all, pid)
	}
	return all
}

// waitForPid waits until n processes of a function or the trigger have started since the start of the run, and returns the
// id of the last one.
func waitForPid(t *testing.T, p *sandbox.Process, function string, n int) int {
	t.Helper()
	require.Eventually(t, func() bool { return len(pids(t, p, function)) >= n }, time.Minute, 10*time.Millisecond)
	all := pids(t, p, function)
	require.Len(t, all, n, p.Output())
	return all[n-1]
}

func hasExited(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestProcessRunsOnlyWhileFunctionIsCalled(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "PROCS_IDLE=6s", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, p)
	waitIdle := func(function string, times int) {
		t.Helper()
		require.Eventually(t, func() bool {
			return strings.Count(p.Output(), fmt.Sprintf("idle      %s after 6s\n", function)) == times
		}, time.Minute, 20*time.Millisecond, p.Output())
	}

	h.submit(t, "first", "第一条")
	first := waitForPid(t, p, "submit", 1)
	for _, function := range []string{"claim", "report", "admin", "messages"} {
		require.Empty(t, pids(t, p, function), "a function has no process before its first call")
	}
	waitIdle("submit", 1)
	require.True(t, hasExited(first))

	h.submit(t, "second", "第二条")
	require.NoError(t, syscall.Kill(waitForPid(t, p, "submit", 2), syscall.SIGKILL))
	require.Eventually(t, func() bool { // on a slow machine the process may already be draining
		return strings.Contains(p.Output(), "unexpectedly: signal: killed\n") || strings.Contains(p.Output(), "submit ended with an error")
	}, time.Minute, 10*time.Millisecond)
	h.submit(t, "third", "第三条")
	waitForPid(t, p, "submit", 3)
	waitIdle("submit", 2)

	status, response := h.call(t, http.MethodGet, "/api/v1/sms/tasks/pending?app_id=a&limit=10", "")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 3, strings.Count(response, `"task_id"`), response)
	begin := time.Now()
	status, response = h.call(t, http.MethodGet, "/api/v1/sms/tasks/pending?app_id=a&wait=8", "")
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, response, "task_id")
	require.GreaterOrEqual(t, time.Since(begin), 8*time.Second)
	waitIdle("claim", 1)
	waitForPid(t, p, "claim", 1) // the process did not end during the call, which was longer than PROCS_IDLE

	poll := h.startPoll(t)
	require.NoError(t, syscall.Kill(waitForPid(t, p, "claim", 2), syscall.SIGKILL))
	require.ErrorIs(t, poll().err, io.EOF, "a call with an unknown outcome gets no response")
}

func TestCallsDuringProcessEndGetResponses(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "PROCS_IDLE=10us", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, p)
	deadline := time.Now().Add(time.Minute)
	for n := 0; len(pids(t, p, "submit")) < 8; n++ {
		h.submit(t, strconv.Itoa(n), "hello")
		require.True(t, time.Now().Before(deadline), "a call got no response in time")
	}
}

func TestInterruptEndsLongPolls(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1")
	h.waitReady(t, p)
	h.submit(t, "first", "第一条")
	require.NoError(t, p.WaitFor(within(t, time.Minute), "sent to 138****8000: 第一条\n"))
	var all []int
	for _, function := range []string{"submit", "claim", "report"} {
		all = append(all, waitForPid(t, p, function, 1))
	}
	poll := h.startPoll(t)
	require.NoError(t, p.Signal(syscall.SIGINT))
	require.Zero(t, p.ExitCode(), p.Output())
	require.True(t, h.portIsClosed())
	for _, pid := range all {
		require.True(t, hasExited(pid))
	}
	got := poll()
	require.NoError(t, got.err)
	require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, got.status, "200, or 503 if the claim arrived after the interrupt")
}

func TestProcessesEndWithKilledRun(t *testing.T) {
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, p)
	children := []int{waitForPid(t, p, "submit", 1), waitForPid(t, p, "trigger", 1)}
	require.NoError(t, p.Kill())
	for _, pid := range children {
		require.Eventually(t, func() bool { return hasExited(pid) }, time.Minute, 10*time.Millisecond, "the children must end with the run")
	}
	again := h.start(t, "PROCS=1", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, again)
	require.NotContains(t, again.Output(), "is taken", "each port must be that of the killed run")
}

func TestFunctionStartFailureIsReported(t *testing.T) {
	t.Parallel()
	t.Run("before the run is ready", func(t *testing.T) {
		t.Parallel()
		p := newTestRun(t).start(t, "PROCS=1", "SENDONCE_MAX_CALLS=many")
		require.Equal(t, 1, p.ExitCode())
		require.Contains(t, p.Output(), "SENDONCE_MAX_CALLS")
	})
	t.Run("when the function is called", func(t *testing.T) {
		t.Parallel()
		h := newTestRun(t)
		p := h.start(t, "PROCS=1", "DEMO_SENDER=false", "SINK=false", "PROCESSING_TIMEOUT_MINUTES=many")
		h.waitReady(t, p)
		status, response := h.call(t, http.MethodGet, "/api/v1/sms/tasks/pending?app_id=a", "")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.JSONEq(t, `{"code":503,"message":"the function claim did not start","error":"server_busy"}`, response)
		require.NoError(t, p.WaitFor(within(t, time.Minute), "PROCESSING_TIMEOUT_MINUTES"))
		h.submit(t, "first", "other functions must work")
	})
}

func TestEveryPathIsRouted(t *testing.T) {
	t.Parallel()
	env, err := fn.NewEnv(appsettings.Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Username: "admin", Password: "secret"}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(env.Close)
	checked := 0
	for _, f := range functions.Catalogue() {
		pages, err := fn.PagePatterns(env, f)
		require.NoError(t, err)
		calls, err := fn.Patterns(env, f)
		require.NoError(t, err)
		for _, pattern := range slices.AppendSeq(pages, maps.Keys(calls)) {
			checked++
			_, path, _ := strings.Cut(pattern, " ")
			path = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(strings.TrimSuffix(path, "{$}"), "1")
			require.Equal(t, f.Name, functionOf(path), pattern)
		}
	}
	require.Greater(t, checked, 100)
	require.Equal(t, "exporter", functionOf("/exporter/metrics"), "the exporter serves this path without a pattern")
	require.Equal(t, "submit", functionOf("/healthz"))
	require.Equal(t, "submit", functionOf("/consoles"))
}

func TestTargetWithoutPathIsNotFound(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	listener, err := listenLocally(t.Context(), 0)
	require.NoError(t, err)
	server := httpserver.New(&activator{}, 8, log.New(&logged, "", 0))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	h := testRun{port: portOf(listener)}
	for _, line := range []string{"CONNECT 127.0.0.1:1", "GET http://x", "GET http://x?function=claim", "GET *"} {
		status, _ := h.rawCall(t, line+" HTTP/1.1\r\nHost: x\r\n\r\n")()
		assert.Equal(t, http.StatusNotFound, status, line)
	}
	require.NoError(t, server.Shutdown(within(t, time.Minute)))
	require.ErrorIs(t, <-ended, http.ErrServerClosed)
	require.Empty(t, logged.String())
}

func TestMetricsOfEachProcess(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, p)
	status, _ := h.call(t, http.MethodGet, "/api/v1/sms/tasks/pending?app_id=a", "")
	require.Equal(t, http.StatusOK, status)
	const called = `sendonce_http_requests_total{function="claim"`
	_, metrics := h.call(t, http.MethodGet, "/metrics?function=claim", "")
	require.Contains(t, metrics, called)
	for _, path := range []string{"/metrics", "/metrics?function=unknown", "/metrics?function=report"} {
		status, metrics = h.call(t, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, status)
		require.NotContains(t, metrics, called)
	}

	trigger := printedOnce(t, p, `trigger +(http://127\.0\.0\.1:\d+)/metrics`)
	require.NoError(t, p.WaitReady(within(t, time.Minute), trigger+"/readyz"))
	res, err := http.Get(trigger + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "sendonce_trigger_connected 1\n")
}

// secretsOf returns the names of the secret settings in the environment of a process.
func secretsOf(t *testing.T, pid int) []string {
	t.Helper()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("this system does not show the environment of a process")
	}
	require.NoError(t, err)
	var names []string
	for pair := range strings.SplitSeq(string(env), "\x00") {
		name, _, _ := strings.Cut(pair, "=")
		if regexp.MustCompile(`^(SENDONCE|BASIC_AUTH|WECHAT|NATS)_.*(PASSWORD|KEYS|SECRET|OWNER_URL)`).MatchString(name) {
			names = append(names, strings.TrimSuffix(name, "_FILE"))
		}
	}
	slices.Sort(names)
	return names
}

func TestProcessHasOnlyItsSecrets(t *testing.T) {
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "PROCS_IDLE=1m", "DEMO_SENDER=false", "SINK=false", "SENDONCE_OWNER_URL=postgres://not-the-one")
	thief := h.watchPort(t, p)
	h.waitReady(t, p)
	for function, path := range map[string]string{"admin": "/api/v1/admin/statistics", "console": "/console", "wechat": "/events/wechat"} {
		h.call(t, http.MethodGet, path, "")
		waitForPid(t, p, function, 1)
	}
	for function, own := range map[string][]string{
		"submit":  {"SENDONCE_HOT_PASSWORD"},
		"admin":   {"SENDONCE_ADMIN_PASSWORD", "SENDONCE_HOT_PASSWORD", "SENDONCE_READ_PASSWORD"},
		"console": {"SENDONCE_ADMIN_PASSWORD", "SENDONCE_ENCRYPTION_KEYS", "SENDONCE_HOT_PASSWORD", "SENDONCE_READ_PASSWORD"},
		"wechat":  {"SENDONCE_ENCRYPTION_KEYS", "SENDONCE_HOT_PASSWORD", "WECHAT_APP_SECRET"},
	} {
		require.ElementsMatch(t, append(own, "BASIC_AUTH_PASSWORD", "NATS_PASSWORD"), secretsOf(t, waitForPid(t, p, function, 1)), function)
	}
	require.Equal(t, []string{"NATS_PASSWORD", "SENDONCE_TRIGGER_PASSWORD"}, secretsOf(t, waitForPid(t, p, "trigger", 1)), "the trigger must not have the admin's password")
	_, callers := h.call(t, http.MethodGet, "/api/v1/admin/callers", "")
	require.Contains(t, callers, `"name":"sendonce-trigger","roles":["trigger"]`)

	require.NoError(t, syscall.Kill(waitForPid(t, p, "admin", 1), syscall.SIGKILL))
	require.NoError(t, p.WaitFor(within(t, time.Minute), "unexpectedly: signal: killed\n"))
	status, _ := h.call(t, http.MethodGet, "/api/v1/admin/callers", "")
	require.Equal(t, http.StatusOK, status)
	require.False(t, thief.listens.Load())
}

// rawCall sends text, which may be only a part of a request, over a new connection. It returns a function that waits for
// the response and returns its status and how long it took. The status is 0 if there is no response.
func (h testRun) rawCall(t *testing.T, text string) func() (status int, took time.Duration) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url(), "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	began := time.Now()
	_, _ = io.WriteString(conn, text) // the server may close the connection before it has read all
	return func() (int, time.Duration) {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return 0, time.Since(began)
		}
		return res.StatusCode, time.Since(began)
	}
}

func TestHalfSentBodyDoesNotDelayEnd(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	h := newTestRun(t)
	p := h.start(t, "PROCS=1", "DEMO_SENDER=false", "SINK=false")
	h.waitReady(t, p)
	slow := h.rawCall(t, "POST /api/v1/sms/send HTTP/1.1\r\nHost: x\r\nContent-Length: 16000\r\n\r\n{")
	h.submit(t, "first", "第一条")

	require.NoError(t, p.Signal(syscall.SIGINT))
	status, took := slow()
	require.Equal(t, http.StatusBadRequest, status)
	require.Less(t, took, 15*time.Second)
	require.Zero(t, p.ExitCode(), p.Output())
}
