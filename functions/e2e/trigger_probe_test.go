package e2e

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// probed is a trigger as a process, with functions that answer as they are told.
type probed struct {
	*server   // its probes
	process   *sandbox.Process
	bin       string
	env       []string // what is in it before the start is added to what it needs
	nats      *sandbox.NATS
	natsDir   string
	accepted  string // the stream that NATS permits; "" = ACCEPTED
	functions *httptest.Server
	answer    atomic.Int32  // the status of each call, unless it is
	held      chan struct{} // a call to sweep hangs until this is closed; nil = it does not
}

func startProbed(t *testing.T, change ...func(*probed)) *probed {
	t.Helper()
	p := &probed{bin: binary(t), natsDir: t.TempDir()}
	p.answer.Store(http.StatusNoContent)
	for _, c := range change {
		c(p)
	}
	p.functions = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events/sweep" && p.held != nil {
			<-p.held
		}
		w.WriteHeader(int(p.answer.Load()))
	}))
	t.Cleanup(p.functions.Close)
	p.nats = natsFor(t, sandbox.NATSOptions{Dir: p.natsDir}, cmp.Or(p.accepted, bus.StreamAccepted))
	p.env = append([]string{"BASIC_AUTH_PASSWORD=secret", "SENDONCE_ENCRYPTION_KEYS=" + sandbox.EncryptionKey, "APP_HOST=127.0.0.1", "PORT=0", "SENDONCE_METRICS=open", "NATS_URL=" + p.nats.URL(),
		"SENDONCE_SAFETY_TICK=1h", "SENDONCE_FUNCTIONS_URL=" + p.functions.URL}, p.env...)
	p.process = startProcess(t, p.bin, p.env, "trigger")
	p.server = &server{t: t, url: address(t, p.process)}
	return p
}

// health is `sendonce health` beside it: the exit code, and what it says.
func (p *probed) health() (int, string) {
	p.t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(p.url, "http://"))
	require.NoError(p.t, err)
	asks := startProcess(p.t, p.bin, append(p.env[:len(p.env):len(p.env)], "PORT="+port), "health")
	return asks.ExitCode(), asks.Output()
}

// scrape is what /metrics says, to somebody without a password.
func (p *probed) scrape() string {
	p.t.Helper()
	res, err := http.Get(p.url + "/metrics")
	require.NoError(p.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(p.t, err)
	require.Equal(p.t, 200, res.StatusCode)
	return string(text)
}

// metric reads one sample of a scrape; -1 when there is none.
func (p *probed) metric(name string) float64 {
	p.t.Helper()
	found := regexp.MustCompile(`(?m)^sendonce_` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(p.scrape())
	if found == nil {
		return -1
	}
	value, err := strconv.ParseFloat(found[1], 64)
	require.NoError(p.t, err)
	return value
}

// until waits for one sample to be so much at least.
func (p *probed) until(name string, least float64) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.metric(name) >= least }, waitLimit, 50*time.Millisecond, name)
}

func (p *probed) untilReady(status int) reply {
	p.t.Helper()
	var r reply
	require.Eventually(p.t, func() bool { r = p.get("/readyz"); return r.status == status }, waitLimit, 20*time.Millisecond)
	return r
}

// eventFunctions are those that a trigger wakes when it is connected.
var eventFunctions = []string{"sweep", "relay", "deliver", "save", "wechat"}

func of(function string) string { return fmt.Sprintf(`{durable=%q,function=%q}`, function, function) }

func TestATriggerSaysThatItLivesIsReadyAndWhatItCarried(t *testing.T) {
	t.Parallel()
	p := startProbed(t)
	require.Equal(t, "{\"status\":\"ok\"}\n", p.untilReady(200).text)
	require.Equal(t, 200, p.get("/healthz").status)
	code, said := p.health()
	require.Zero(t, code, said)
	for _, f := range eventFunctions {
		p.until("trigger_delivered_total"+of(f), 1)
		require.InDelta(t, 1, p.metric(fmt.Sprintf(`trigger_deliveries_total{durable=%q,function=%q,status="204"}`, f, f)), 0)
		require.InDelta(t, 1, p.metric("trigger_delivery_seconds_count"+of(f)), 0)
		for name, want := range map[string]float64{"pulling": 1, "under_way": 0, "retried_total": 0, "denied_total": 0, "dead_letters_total": 0} {
			require.InDelta(t, want, p.metric("trigger_"+name+of(f)), 0, name)
		}
	}
	require.Eventually(t, func() bool { return p.metric("trigger_unsettled"+of("sweep")) == 0 }, waitLimit, 50*time.Millisecond)
	require.Zero(t, p.metric("trigger_waiting"+of("sweep")))
	require.Zero(t, p.metric("trigger_waiting"+`{durable="save-1-of-1",function="save"}`))
	require.Zero(t, p.metric("dead_letters"))
	require.Zero(t, p.metric(`stream_used_ratio{stream="USERS"}`))
	require.InDelta(t, 1, p.metric("trigger_connected"), 0)
	require.Equal(t, 404, p.post("/events/sweep", `{}`).status, "it is no function")
	require.NotContains(t, p.scrape(), "secret")
}

func TestATriggerWithoutNATSLivesAndIsNotReadyUntilItIsBack(t *testing.T) {
	t.Parallel()
	p := startProbed(t)
	p.untilReady(200)
	p.until("trigger_delivered_total"+of("sweep"), 1)
	require.NoError(t, p.nats.Stop())
	var away reply
	require.Eventually(t, func() bool {
		away = p.get("/readyz") // which may see the end of a pull before that of the connection
		return away.status == 503 && away.text == "{\"status\":\"not connected to NATS\"}\n"
	}, waitLimit, 20*time.Millisecond)
	require.Equal(t, "1", away.header.Get("Retry-After"))
	require.Equal(t, 200, p.get("/healthz").status, "a restart would not bring NATS back")
	code, said := p.health()
	require.Zero(t, code, said)
	require.Zero(t, p.metric("trigger_connected"))
	require.Eventually(t, func() bool { return p.metric("trigger_pulling"+of("sweep")) == 0 }, waitLimit, 20*time.Millisecond)
	require.InDelta(t, -1, p.metric("trigger_waiting"+of("sweep")), 0, "rather than an old number")
	require.InDelta(t, -1, p.metric(`stream_used_ratio{stream="USERS"}`), 0)
	require.InDelta(t, 1, p.metric("trigger_delivered_total"+of("sweep")), 0)

	natsIn(t, sandbox.NATSOptions{Dir: p.natsDir, Port: p.nats.Port()})
	p.untilReady(200)
	p.until("trigger_delivered_total"+of("sweep"), 2)
	require.InDelta(t, 1, p.metric("trigger_connected"), 0)
}

func TestATriggerThatNeverSawNATSLives(t *testing.T) {
	t.Parallel()
	p := startProbed(t)
	lonely := startProcess(t, p.bin, append(p.env[:len(p.env):len(p.env)], "NATS_URL=nats://127.0.0.1:1"), "trigger")
	p.server = &server{t: t, url: address(t, lonely)}
	require.Equal(t, 503, p.get("/readyz").status)
	require.Equal(t, 200, p.get("/healthz").status)
	require.Zero(t, p.metric("trigger_connected"))
}

func TestWhatFunctionsDoNotTakeIsSeenInTheMetricsOfTheTrigger(t *testing.T) {
	t.Parallel()
	for status, sample := range map[int]string{
		http.StatusServiceUnavailable: "trigger_retried_total", http.StatusForbidden: "trigger_denied_total", http.StatusBadRequest: "trigger_dead_letters_total",
	} {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			p := startProbed(t, func(p *probed) { p.answer.Store(int32(status)) })
			p.until(fmt.Sprintf(`trigger_deliveries_total{durable="sweep",function="sweep",status="%d"}`, status), 1)
			p.until(sample+of("sweep"), 1)
			require.Zero(t, p.metric("trigger_delivered_total"+of("sweep")))
			switch status {
			case http.StatusBadRequest:
				p.until("dead_letters", float64(len(eventFunctions)))
			case http.StatusServiceUnavailable:
				p.until("trigger_redelivered"+of("sweep"), 1)
				require.InDelta(t, 1, p.metric("trigger_unsettled"+of("sweep")), 0)
				p.answer.Store(http.StatusNoContent)
				p.until("trigger_delivered_total"+of("sweep"), 1)
				require.Eventually(t, func() bool { return p.metric("trigger_unsettled"+of("sweep")) == 0 }, waitLimit, 50*time.Millisecond)
			}
			require.Equal(t, 200, p.get("/readyz").status, "the trouble is the function's")
			require.Equal(t, 200, p.get("/healthz").status)
		})
	}
}

func TestAHangIsSeenWhereItIs(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	p := startProbed(t, func(p *probed) { p.held = held })
	t.Cleanup(release) // before the functions end, which wait for their calls
	p.until("trigger_under_way"+of("sweep"), 1)
	p.until("trigger_delivered_total"+of("relay"), 1) // others go on
	require.Equal(t, 200, p.get("/healthz").status, "a function that hangs is no hang of the trigger")
	require.Equal(t, 200, p.get("/readyz").status)

	require.NoError(t, p.process.Signal(syscall.SIGSTOP))
	code, said := p.health()
	require.Equal(t, 1, code, said)
	require.Contains(t, said, "health failed")
	require.NoError(t, p.process.Signal(syscall.SIGCONT))
	code, said = p.health()
	require.Zero(t, code, said)

	// Probes are answered while it ends, and then it has ended.
	require.NoError(t, p.process.Signal(syscall.SIGTERM))
	require.Regexp(t, `^\{"status":"these routes do not run: [a-z0-9, -]+ \(ending\)[a-z0-9, ()-]*"\}\n$`, p.untilReady(503).text)
	require.Eventually(t, func() bool { return strings.Contains(p.get("/readyz").text, "sweep") }, waitLimit, 20*time.Millisecond)
	require.Equal(t, 200, p.get("/healthz").status)
	release()
	require.Zero(t, p.process.ExitCode(), p.process.Output())
}

func TestATriggerWhosePortIsTakenDoesNotStart(t *testing.T) {
	t.Parallel()
	p := startProbed(t)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(p.url, "http://"))
	require.NoError(t, err)
	second := startProcess(t, p.bin, append(p.env[:len(p.env):len(p.env)], "PORT="+port), "trigger")
	exited(t, second)
	require.Equal(t, 1, second.ExitCode())
	require.Contains(t, second.Output(), "address already in use")
}
