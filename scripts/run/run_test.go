package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// testRun is a SENDONCE_HOME and a port for `make run`. `make run` may be started several times with them.
type testRun struct {
	home string
	port int
	bin  string   // path of the binary of this command
	env  []string // further variables for every start
}

func newTestRun(t *testing.T) testRun {
	t.Helper()
	h := newEmptyTestRun(t)
	if h.env = sandbox.SharedEnv(); len(h.env) > 0 {
		return h
	}
	// `make run` builds the functions into home/bin. If an up-to-date binary is there already, nothing is linked.
	require.NoError(t, os.Mkdir(filepath.Join(h.home, "bin"), 0o755))
	built, err := os.ReadFile(sandbox.Build(t, "github.com/sendonce/sendonce/functions/sendonce"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(h.home, "bin", "sendonce"), built, 0o755))
	return h
}

// newEmptyTestRun returns a testRun with an empty home: its start builds the functions and runs initdb.
func newEmptyTestRun(t *testing.T) testRun {
	t.Helper()
	home, err := os.MkdirTemp("", "so-run-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(home, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(home)) })
	port, err := sandbox.FreePort()
	require.NoError(t, err)
	return testRun{home, port, sandbox.Build(t, "github.com/sendonce/sendonce/scripts/run"), nil}
}

func (h testRun) url() string { return fmt.Sprintf("http://127.0.0.1:%d", h.port) }

// password returns the password of the admin, which the first run generates.
func (h testRun) password(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.home, "secrets", "basic_auth_password"))
	require.NoError(t, err)
	require.Len(t, text, 26, "128 random bits")
	return string(text)
}

// start starts `make run` with env and the variables that the Go tool needs.
func (h testRun) start(t *testing.T, env ...string) *sandbox.Process {
	t.Helper()
	base := []string{"SENDONCE_HOME=" + h.home, fmt.Sprintf("PORT=%d", h.port)}
	for _, pair := range os.Environ() {
		if strings.HasPrefix(pair, "GO") {
			base = append(base, pair)
		}
	}
	p := sandbox.StartProcess(t, h.bin, slices.Concat(base, h.env, env))
	t.Cleanup(func() {
		// Terminate waits, so that nothing writes into the home while it is removed.
		_, err := p.Terminate(time.Minute)
		require.NoError(t, err)
	})
	return p
}

func (h testRun) waitReady(t *testing.T, p *sandbox.Process) {
	t.Helper()
	require.NoError(t, p.WaitFor(within(t, 4*time.Minute), "\nready "+h.url()+"\n"))
}

// submit submits an SMS task and returns the response. more are further JSON members, each with a comma before it.
func (h testRun) submit(t *testing.T, key, content string, more ...string) string {
	t.Helper()
	body := fmt.Sprintf(`{"phone_number":"13800138000","content":%q,"idempotency_key":%q%s}`, content, key, strings.Join(more, ""))
	status, response := h.call(t, http.MethodPost, "/api/v1/sms/send", body)
	require.Equal(t, http.StatusOK, status, response)
	return response
}

// submitSubscribeMessage submits the confirmation of a booking.
func (h testRun) submitSubscribeMessage(t *testing.T) {
	t.Helper()
	client := api.NewClient(h.url(), "admin", h.password(t))
	_, err := client.Subscribe(t.Context(), api.SubscribeRequest{
		BusinessType: "course_booking", BusinessID: "123", TemplateType: "BOOKING_CONFIRM", ReceiverUserID: "9",
		TemplateID: wechatTemplate, ReceiverOpenID: wechatUser, MessageData: []byte(`{"thing1":{"value":"瑜伽课"}}`),
	})
	require.NoError(t, err)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// portIsClosed reports whether nothing listens on the port of the API.
func (h testRun) portIsClosed() bool {
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url(), "http://"))
	if err != nil {
		return true
	}
	conn.Close()
	return false
}

// requireNATSPasswords checks that NATS accepts only the passwords in the run's files, and that only their owner may
// read these files.
func (h testRun) requireNATSPasswords(t *testing.T, runEnv string) {
	t.Helper()
	operator := regexp.MustCompile(`(?m)^NATS_URL=(\S+)$`).FindStringSubmatch(runEnv)
	require.Len(t, operator, 2)
	nc, err := nats.Connect(operator[1])
	require.NoError(t, err)
	nc.Close()
	wrongLogin, err := url.Parse(operator[1])
	require.NoError(t, err)
	for _, user := range []*url.Userinfo{nil, url.UserPassword("operator", "operator"), url.UserPassword("sendonce", h.password(t))} {
		wrongLogin.User = user
		_, err := nats.Connect(wrongLogin.String())
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	files, err := os.ReadDir(filepath.Join(h.home, "secrets"))
	require.NoError(t, err)
	require.Greater(t, len(files), len(bus.Users("ACCEPTED")))
	for _, file := range files {
		info, err := file.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), file.Name())
	}
}

// requireRandomPassword checks that the API rejects guessable passwords and an empty password.
func (h testRun) requireRandomPassword(t *testing.T) {
	t.Helper()
	for _, password := range []string{"sendonce-local", "admin", ""} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url()+"/api/v1/admin/statistics", nil)
		require.NoError(t, err)
		req.SetBasicAuth("admin", password)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, http.StatusUnauthorized, res.StatusCode, password)
	}
}

// printedOnce requires that one line of the output matches pattern, and returns the group of pattern.
func printedOnce(t *testing.T, p *sandbox.Process, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^ *`+pattern+`$`).FindAllStringSubmatch(p.Output(), -1)
	require.Len(t, found, 1, p.Output())
	return found[0][1]
}

// runPrintedCommand runs the curl command that the run prints.
func (h testRun) runPrintedCommand(t *testing.T, p *sandbox.Process) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("there is no curl")
		return
	}
	response, err := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(printedOnce(t, p, `try +(curl .*)`), "curl ", "curl -sS ", 1)).CombinedOutput()
	require.NoError(t, err, "%s", response)
	require.Contains(t, string(response), `"code":200`)
}

func TestRunSendsAndKeepsData(t *testing.T) {
	t.Parallel()
	h := newEmptyTestRun(t)
	p := h.start(t)
	h.waitReady(t, p)
	runEnv := filepath.Join(h.home, "run.env")
	info, err := os.Stat(runEnv)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	text, err := os.ReadFile(runEnv)
	require.NoError(t, err)
	require.Regexp(t, `^DATABASE_URL=\S+\nNATS_URL=nats://operator:\S+@\S+\nNATS_POINTS_URL=nats://points:\S+@\S+\nNATS_DOMAIN=sendonce\nWECHAT_URL=http://127\.0\.0\.1:\d+\nWECHAT_LEDGER_SECRET=\w{26}\nSENDONCE_URL=`+h.url()+`\nSENDONCE_USER=admin\nSENDONCE_PASSWORD=`+h.password(t)+`\n$`, string(text))
	h.requireNATSPasswords(t, string(text))
	h.requireRandomPassword(t)
	require.NotContains(t, p.Output(), h.password(t))
	h.runPrintedCommand(t, p)
	first := h.submit(t, "first", "第一条")
	require.NoError(t, p.WaitFor(within(t, time.Minute), "sent to 138****8000: 第一条\n"))
	h.submitSubscribeMessage(t)
	require.NoError(t, p.WaitFor(within(t, time.Minute), `wechat: delivered to oABC123: {"thing1":{"value":"瑜伽课"}}`))

	code, err := p.Terminate(time.Minute)
	require.NoError(t, err)
	require.Zero(t, code, p.Output())
	require.True(t, h.portIsClosed())
	require.NoFileExists(t, runEnv)
	addresses := printedAddresses(t, p)

	p = h.start(t, "DEMO_SENDER=false")
	h.waitReady(t, p)
	require.Equal(t, addresses, printedAddresses(t, p), "the addresses must stay the same for programs that use the run")
	require.Equal(t, idOf(t, first), idOf(t, h.submit(t, "first", "第一条")), "the data must be kept")
	second := h.submit(t, "second", "第二条")
	require.NoError(t, p.Kill())

	p = h.start(t)
	h.waitReady(t, p)
	require.Equal(t, addresses, printedAddresses(t, p))
	require.Equal(t, idOf(t, second), idOf(t, h.submit(t, "second", "第二条")))
	require.NoError(t, p.WaitFor(within(t, time.Minute), "sent to 138****8000: 第二条\n"))
	require.NotContains(t, p.Output(), "第一条", "a sent message must not be sent again")

	h.submit(t, "later", "第三条", `,"send_at":"`+time.Now().Add(2*time.Second).UTC().Format(time.RFC3339)+`"`)
	require.NoError(t, p.WaitFor(within(t, time.Minute), "sent to 138****8000: 第三条\n"), "sweep must make the task pending at send_at and wake the waiting sender")
}

// printedAddresses returns the lines in which a run prints its addresses.
func printedAddresses(t *testing.T, p *sandbox.Process) []string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^(?:postgres|nats|trigger|  console|  API|  API docs|  sink) .*$`).FindAllString(p.Output(), -1)
	require.Len(t, found, 7, p.Output())
	return found
}

// idOf returns the id of the task in the response to a submission.
func idOf(t *testing.T, response string) string {
	t.Helper()
	found := regexp.MustCompile(`"task_id":"([^"]+)"`).FindStringSubmatch(response)
	require.Len(t, found, 2, response)
	return found[1]
}

func TestNoFakeWeChatIfAppIsConfigured(t *testing.T) {
	t.Parallel()
	s, stop, err := startWeChat(t.Context(), settings{all: map[string]string{"WECHAT_APP_ID": "wx1"}}, io.Discard)
	require.NoError(t, err)
	require.NoError(t, stop())
	require.Equal(t, map[string]string{"WECHAT_APP_ID": "wx1"}, s.all)
	require.Empty(t, s.wechatURL)
}

func TestRunFails(t *testing.T) {
	t.Parallel()

	t.Run("a port that is taken", func(t *testing.T) {
		t.Parallel()
		h := newTestRun(t)
		taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", h.port))
		require.NoError(t, err)
		defer taken.Close()
		p := h.start(t)
		require.Equal(t, 1, p.ExitCode())
		require.Equal(t, fmt.Sprintf("make run: port %d is taken: stop what listens there or set PORT to another\n", h.port), p.Output())
	})
	t.Run("a second run in the same home", func(t *testing.T) {
		t.Parallel()
		h := newTestRun(t)
		first := h.start(t)
		require.NoError(t, first.WaitFor(within(t, time.Minute), "build "))
		other := h
		other.port = newEmptyTestRun(t).port
		p := other.start(t)
		require.Equal(t, 1, p.ExitCode())
		require.Equal(t, fmt.Sprintf("make run: another run is running in %s already, started by process %d: stop that first or use another directory\n", h.home, first.Pid()), p.Output())
		h.waitReady(t, first)
	})
	t.Run("a Postgres that is killed", func(t *testing.T) {
		t.Parallel()
		h := newTestRun(t)
		p := h.start(t)
		h.waitReady(t, p)
		text, err := os.ReadFile(filepath.Join(h.home, "postgres", "data", "postmaster.pid"))
		require.NoError(t, err)
		line, _, _ := strings.Cut(string(text), "\n")
		pid, err := strconv.Atoi(line)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.Equal(t, 1, p.ExitCode())
		require.Contains(t, p.Output(), "make run: postgres ended unexpectedly")
		require.Contains(t, p.Output(), "database system is ready to accept connections", "the end of its log")
		require.True(t, h.portIsClosed())
		h.waitReady(t, h.start(t))
	})
	t.Run("a setting that the server rejects", func(t *testing.T) {
		t.Parallel()
		h := newTestRun(t)
		p := h.start(t, "SENDONCE_MAX_CALLS=many")
		require.Equal(t, 1, p.ExitCode())
		require.Contains(t, p.Output(), "SENDONCE_MAX_CALLS")
	})
}
