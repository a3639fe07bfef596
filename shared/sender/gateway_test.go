package sender_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sender"
	"github.com/sendonce/sendonce/shared/sender/gatewaytest"
)

// ledger counts the messages that a provider accepted.
type ledger struct {
	mu       sync.Mutex
	accepted map[string]int
}

func newLedger() *ledger { return &ledger{accepted: map[string]int{}} }

func (l *ledger) add(task string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted[task]++
}

func (l *ledger) sent(m sender.Message) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted[m.TaskID]
}

func TestConsoleConforms(t *testing.T) {
	t.Parallel()
	gatewaytest.Run(t, func(*testing.T) gatewaytest.Fixture {
		// A line does not have the task's id, so each task has its own output.
		var outputs sync.Map
		outputOf := func(m sender.Message) *sandbox.LogBuffer {
			b, _ := outputs.LoadOrStore(m.TaskID, &sandbox.LogBuffer{})
			return b.(*sandbox.LogBuffer)
		}
		return gatewaytest.Fixture{
			Gateway: sender.GatewayFunc(func(ctx context.Context, m sender.Message) sender.Result {
				return sender.NewConsole(outputOf(m)).Send(ctx, m)
			}),
			Sent: func(m sender.Message) int { return strings.Count(outputOf(m).String(), "\n") },
		}
	})
}

func TestConsoleIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var out sandbox.LogBuffer
	console := sender.NewConsole(&out)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { console.Send(context.Background(), hello) })
	}
	all.Wait()
	require.Equal(t, strings.Repeat("sent to +86****8000: hello\n", 50), out.String())
}

func TestHTTPGatewayConforms(t *testing.T) {
	t.Parallel()
	gatewaytest.Run(t, func(t *testing.T) gatewaytest.Fixture {
		accepted, stalled := newLedger(), make(chan struct{})
		provider := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var m struct{ ID, To, Text string }
			if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
				return // an incomplete request is not accepted
			}
			accepted.add(m.ID)
			select {
			case <-stalled:
				<-r.Context().Done()
			default:
			}
		}))
		t.Cleanup(provider.Close)
		g, err := sender.NewHTTP(sender.HTTPConfig{URL: provider.URL, Body: `{"id":"{{.TaskID}}","to":"{{.PhoneNumber}}","text":"{{.Content}}"}`})
		require.NoError(t, err)
		return gatewaytest.Fixture{Gateway: g, Sent: accepted.sent, Stall: func() { close(stalled) }}
	})
}

func TestFlakyGatewayConforms(t *testing.T) {
	t.Parallel()
	gatewaytest.Run(t, func(t *testing.T) gatewaytest.Fixture { return flakyFixture(t, sender.FlakyConfig{}) })
}

func TestFlakyGatewaySendsNothingAfterCancel(t *testing.T) {
	t.Parallel()
	s := flakyFixture(t, sender.FlakyConfig{Shares: map[string]float64{"hang": 1}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, sender.Released, s.Gateway.Send(ctx, hello).Outcome)
	require.Zero(t, s.Sent(hello))
}

func flakyFixture(t *testing.T, cfg sender.FlakyConfig) gatewaytest.Fixture {
	t.Helper()
	f, err := sender.NewFlaky(cfg)
	require.NoError(t, err)
	return gatewaytest.Fixture{Gateway: f, Sent: func(m sender.Message) int {
		return f.Ledger()[sender.SentAttempt{TaskID: m.TaskID, ClaimID: m.ClaimID}]
	}}
}

// Each bad gateway violates rule, and perhaps other rules.
var badGateways = map[string]struct {
	rule string
	send func(ctx context.Context, m sender.Message, provider *ledger) sender.Result
}{
	"sends nothing": {gatewaytest.SentOnce, func(context.Context, sender.Message, *ledger) sender.Result {
		return sender.Result{Outcome: sender.OK}
	}},
	"sends twice": {gatewaytest.SentConcurrently, func(_ context.Context, m sender.Message, p *ledger) sender.Result {
		p.add(m.TaskID)
		p.add(m.TaskID)
		return sender.Result{Outcome: sender.OK}
	}},
	"refuses a quote": {gatewaytest.AnyContent, func(_ context.Context, m sender.Message, p *ledger) sender.Result {
		if strings.Contains(m.Content, `"`) {
			return sender.Result{Outcome: sender.Failed}
		}
		p.add(m.TaskID)
		return sender.Result{Outcome: sender.OK}
	}},
	"returns ok after cancel": {gatewaytest.CancelledBefore, func(ctx context.Context, m sender.Message, p *ledger) sender.Result {
		if ctx.Err() == nil {
			p.add(m.TaskID)
		}
		return sender.Result{Outcome: sender.OK}
	}},
	"releases a sent message": {gatewaytest.CancelledDuring, func(ctx context.Context, m sender.Message, p *ledger) sender.Result {
		p.add(m.TaskID)
		<-ctx.Done()
		return sender.Result{Outcome: sender.Released}
	}},
	"never returns": {gatewaytest.NoResponse, func(context.Context, sender.Message, *ledger) sender.Result {
		select {}
	}},
}

// Each bad gateway is tested in a process of its own, in which the subtest of the violated rule must fail.
func TestSuiteFailsForBadGateways(t *testing.T) {
	t.Parallel()
	if name := os.Getenv("BAD_GATEWAY"); name != "" {
		gatewaytest.Run(t, func(*testing.T) gatewaytest.Fixture {
			provider := newLedger()
			return gatewaytest.Fixture{
				Gateway: sender.GatewayFunc(func(ctx context.Context, m sender.Message) sender.Result {
					return badGateways[name].send(ctx, m, provider)
				}),
				Sent: provider.sent, Stall: func() {},
			}
		})
		return
	}
	for name, gateway := range badGateways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := strings.ReplaceAll(gateway.rule, " ", "_")
			test := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestSuiteFailsForBadGateways$/^"+rule+"$")
			test.Env = append(os.Environ(), "BAD_GATEWAY="+name)
			out, err := test.CombinedOutput()
			require.Error(t, err, string(out))
			require.Contains(t, string(out), "--- FAIL: TestSuiteFailsForBadGateways/"+rule)
		})
	}
}
