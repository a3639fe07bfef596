package e2e

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
	"github.com/sendonce/sendonce/shared/trigger"
)

// probedTrigger is a trigger process, with a server in place of the functions. The test chooses the status that this
// server returns.
type probedTrigger struct {
	*cluster.Client // calls the port of the trigger, which serves probes and metrics
	process         *sandbox.Process
	bin             string
	env             []string // settings that are added to the required ones
	nats            *natsserver.Server
	natsDir         string
	accepted        string // name of the stream of accepted messages in the permissions of NATS; "" = ACCEPTED
	functions       *httptest.Server
	status          atomic.Int32  // what the functions return
	held            chan struct{} // calls to sweep wait until held is closed; nil = they do not wait
}

func startProbed(t *testing.T, change ...func(*probedTrigger)) *probedTrigger {
	t.Helper()
	p := &probedTrigger{bin: cluster.Binary(t), natsDir: t.TempDir()}
	p.status.Store(http.StatusNoContent)
	for _, c := range change {
		c(p)
	}
	p.functions = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events/sweep" && p.held != nil {
			<-p.held
		}
		w.Header().Set(trigger.FunctionHeader, path.Base(r.URL.Path))
		w.WriteHeader(int(p.status.Load()))
	}))
	t.Cleanup(p.functions.Close)
	p.nats = cluster.NATSFor(t, natsserver.Options{Dir: p.natsDir}, cmp.Or(p.accepted, bus.StreamAccepted))
	p.env = append([]string{"BASIC_AUTH_PASSWORD=secret", "SENDONCE_ENCRYPTION_KEYS=" + sandbox.EncryptionKey, "APP_HOST=127.0.0.1", "PORT=0", "SENDONCE_METRICS=open", "NATS_URL=" + p.nats.URL(),
		"SENDONCE_SAFETY_TICK=1h", "SENDONCE_FUNCTIONS_URL=" + p.functions.URL}, p.env...)
	p.process = cluster.StartProcess(t, p.bin, p.env, "trigger")
	p.Client = &cluster.Client{T: t, URL: cluster.Address(t, p.process)}
	return p
}

// run starts a command with the settings and the port of the trigger.
func (p *probedTrigger) run(command string) *sandbox.Process {
	p.T.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(p.URL, "http://"))
	require.NoError(p.T, err)
	return cluster.StartProcess(p.T, p.bin, append(p.env[:len(p.env):len(p.env)], "PORT="+port), command)
}

// health runs the command health beside the trigger, and returns its exit code and output.
func (p *probedTrigger) health() (int, string) {
	p.T.Helper()
	check := p.run("health")
	return check.ExitCode(), check.Output()
}

// metric returns one sample of the trigger's metrics; -1 if there is none.
func (p *probedTrigger) metric(name string) float64 {
	p.T.Helper()
	return sampleOf(p.T, cluster.Metrics(p.T, p.URL), name)
}

// sampleOf returns the sample sendonce_<name> of a text of metrics; -1 if there is none.
func sampleOf(t *testing.T, metrics, name string) float64 {
	t.Helper()
	_, rest, found := strings.Cut("\n"+metrics, "\nsendonce_"+name+" ")
	if !found {
		return -1
	}
	text, _, _ := strings.Cut(rest, "\n")
	value, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return value
}

// waitMetric waits until a sample is at least a value.
func (p *probedTrigger) waitMetric(name string, least float64) {
	p.T.Helper()
	cluster.Eventually(p.T, func() bool { return p.metric(name) >= least }, name)
}

// waitReadiness waits until /readyz returns a status.
func (p *probedTrigger) waitReadiness(status int) cluster.Reply {
	p.T.Helper()
	var r cluster.Reply
	cluster.Eventually(p.T, func() bool { r = p.Get("/readyz"); return r.Status == status })
	return r
}

// eventFunctions are the functions that a trigger wakes when the trigger connects to NATS.
var eventFunctions = []string{"sweep", "relay", "deliver", "save", "wechat"}

// labels returns the labels of the samples of a function's wake-ups. Their consumer has the name of the function.
func labels(function string) string {
	return fmt.Sprintf(`{durable=%q,function=%q}`, function, function)
}

func TestTriggerHealthReadinessAndMetrics(t *testing.T) {
	t.Parallel()
	p := startProbed(t)
	require.Equal(t, "{\"status\":\"ok\"}\n", p.waitReadiness(200).Text)
	p.Get("/healthz").RequireOK()
	code, output := p.health()
	require.Zero(t, code, output)
	for _, f := range eventFunctions {
		p.waitMetric("trigger_delivered_total"+labels(f), 1)
		require.InDelta(t, 1, p.metric(fmt.Sprintf(`trigger_deliveries_total{durable=%q,function=%q,status="204"}`, f, f)), 0)
		require.InDelta(t, 1, p.metric("trigger_delivery_seconds_count"+labels(f)), 0)
		for name, want := range map[string]float64{"pulling": 1, "under_way": 0, "retried_total": 0, "denied_total": 0, "dead_letters_total": 0} {
			require.InDelta(t, want, p.metric("trigger_"+name+labels(f)), 0, name)
		}
	}
	cluster.Eventually(t, func() bool { return p.metric("trigger_unsettled"+labels("sweep")) == 0 })
	require.Zero(t, p.metric("trigger_waiting"+labels("sweep")))
	require.Zero(t, p.metric("trigger_waiting"+`{durable="save-1-of-1",function="save"}`))
	require.Zero(t, p.metric("dead_letters"))
	require.Zero(t, p.metric(`stream_used_ratio{stream="USERS"}`))
	require.InDelta(t, 1, p.metric("trigger_connected"), 0)
	require.Equal(t, 404, p.Post("/events/sweep", `{}`).Status, "the trigger serves no function")
	require.NotContains(t, cluster.Metrics(t, p.URL), "secret")

	require.NoError(t, p.nats.Stop())
	var unready cluster.Reply
	cluster.Eventually(t, func() bool {
		unready = p.Get("/readyz") // may first report that a pull has ended
		return unready.Status == 503 && unready.Text == "{\"status\":\"not connected to NATS\"}\n"
	})
	require.Equal(t, "1", unready.Header.Get("Retry-After"))
	require.Equal(t, 200, p.Get("/healthz").Status, "a restart would not bring NATS back")
	code, output = p.health()
	require.Zero(t, code, output)
	require.Zero(t, p.metric("trigger_connected"))
	cluster.Eventually(t, func() bool { return p.metric("trigger_pulling"+labels("sweep")) == 0 })
	require.InDelta(t, -1, p.metric("trigger_waiting"+labels("sweep")), 0, "an outdated value is not shown")
	require.InDelta(t, -1, p.metric(`stream_used_ratio{stream="USERS"}`), 0)
	require.InDelta(t, 1, p.metric("trigger_delivered_total"+labels("sweep")), 0)

	second := p.run("trigger")
	cluster.WaitExit(t, second)
	require.Equal(t, 1, second.ExitCode())
	require.Contains(t, second.Output(), "address already in use")
	early := cluster.StartProcess(t, p.bin, p.env, "trigger") // NATS is stopped when this trigger starts
	starting := *p.Client
	starting.URL = cluster.Address(t, early)
	require.Equal(t, 503, starting.Get("/readyz").Status)
	starting.Get("/healthz").RequireOK()
	require.NoError(t, early.Kill())

	cluster.NATSIn(t, natsserver.Options{Dir: p.natsDir, Port: p.nats.Port()})
	p.waitReadiness(200)
	p.waitMetric("trigger_delivered_total"+labels("sweep"), 2)
	require.InDelta(t, 1, p.metric("trigger_connected"), 0)
}

func TestTriggerCountsRejectedEvents(t *testing.T) {
	t.Parallel()
	for status, sample := range map[int]string{
		http.StatusServiceUnavailable: "trigger_retried_total", http.StatusForbidden: "trigger_denied_total", http.StatusBadRequest: "trigger_dead_letters_total",
	} {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			p := startProbed(t, func(p *probedTrigger) { p.status.Store(int32(status)) })
			p.waitMetric(fmt.Sprintf(`trigger_deliveries_total{durable="sweep",function="sweep",status="%d"}`, status), 1)
			p.waitMetric(sample+labels("sweep"), 1)
			require.Zero(t, p.metric("trigger_delivered_total"+labels("sweep")))
			switch status {
			case http.StatusBadRequest:
				p.waitMetric("dead_letters", float64(len(eventFunctions)))
			case http.StatusServiceUnavailable:
				p.waitMetric("trigger_redelivered"+labels("sweep"), 1)
				require.InDelta(t, 1, p.metric("trigger_unsettled"+labels("sweep")), 0)
				p.status.Store(http.StatusNoContent)
				p.waitMetric("trigger_delivered_total"+labels("sweep"), 1)
				cluster.Eventually(t, func() bool { return p.metric("trigger_unsettled"+labels("sweep")) == 0 })
			}
			require.Equal(t, 200, p.Get("/readyz").Status, "the function fails, not the trigger")
			p.Get("/healthz").RequireOK()
		})
	}
}

func TestTriggerIsHealthyWhileFunctionHangs(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	p := startProbed(t, func(p *probedTrigger) { p.held = held })
	t.Cleanup(release) // runs before the cleanup that stops the functions, which waits for their calls
	p.waitMetric("trigger_under_way"+labels("sweep"), 1)
	p.waitMetric("trigger_delivered_total"+labels("relay"), 1) // other routes continue
	require.Equal(t, 200, p.Get("/healthz").Status, "the function hangs, not the trigger")
	p.Get("/readyz").RequireOK()

	require.NoError(t, p.process.Signal(syscall.SIGSTOP))
	var code int
	var output string
	// The kernel stops a thread only when the thread runs next, so the trigger may respond for a moment after the signal.
	cluster.Eventually(t, func() bool { code, output = p.health(); return code == 1 })
	require.Contains(t, output, "health failed")
	require.NoError(t, p.process.Signal(syscall.SIGCONT))
	code, output = p.health()
	require.Zero(t, code, output)

	// Probes are served while the trigger shuts down.
	require.NoError(t, p.process.Signal(syscall.SIGTERM))
	require.Regexp(t, `^\{"status":"these routes do not run: [a-z0-9, -]+ \(ending\)[a-z0-9, ()-]*"\}\n$`, p.waitReadiness(503).Text)
	cluster.Eventually(t, func() bool { return strings.Contains(p.Get("/readyz").Text, "sweep") })
	p.Get("/healthz").RequireOK()
	release()
	require.Zero(t, p.process.ExitCode(), p.process.Output())
}

func TestPromtoolAcceptsMetricsOfTrigger(t *testing.T) {
	t.Parallel()
	sandbox.PrometheusProgram(t, "promtool")
	p := startProbed(t)
	p.waitReadiness(200)
	p.waitMetric("trigger_delivered_total"+labels("sweep"), 1)
	sandbox.RequirePromtoolAccepts(t, cluster.Metrics(t, p.URL))
}
