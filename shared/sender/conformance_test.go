package sender_test

import (
	"bytes"
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

	"github.com/sendonce/sendonce/shared/sender"
	"github.com/sendonce/sendonce/shared/sender/gatewaytest"
)

// ledger is what a provider took.
type ledger struct {
	mu    sync.Mutex
	taken map[string]int
}

func newLedger() *ledger { return &ledger{taken: map[string]int{}} }

func (l *ledger) take(task string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[task]++
}

func (l *ledger) sent(m sender.Message) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken[m.TaskID]
}

// screen is where a console prints.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestTheConsoleConforms(t *testing.T) {
	t.Parallel()
	gatewaytest.Run(t, func(*testing.T) gatewaytest.Subject {
		// A line does not tell its task, so each task has a screen.
		var screens sync.Map
		of := func(m sender.Message) *screen {
			s, _ := screens.LoadOrStore(m.TaskID, &screen{})
			return s.(*screen)
		}
		return gatewaytest.Subject{
			Gateway: sender.GatewayFunc(func(ctx context.Context, m sender.Message) sender.Result {
				return sender.NewConsole(of(m)).Send(ctx, m)
			}),
			Sent: func(m sender.Message) int { return strings.Count(of(m).String(), "\n") },
		}
	})
}

func TestOneConsoleConformsWithManySenders(t *testing.T) {
	t.Parallel()
	var out screen
	console := sender.NewConsole(&out)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { console.Send(context.Background(), hello) })
	}
	all.Wait()
	require.Equal(t, strings.Repeat("sent to +86****8000: hello\n", 50), out.String())
}

func TestTheHTTPGatewayConforms(t *testing.T) {
	t.Parallel()
	gatewaytest.Run(t, func(t *testing.T) gatewaytest.Subject {
		taken, stalled := newLedger(), make(chan struct{})
		provider := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var m struct{ ID, To, Text string }
			if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
				return // what was cut short is not taken
			}
			taken.take(m.ID)
			select {
			case <-stalled:
				<-r.Context().Done()
			default:
			}
		}))
		t.Cleanup(provider.Close)
		g, err := sender.NewHTTP(sender.HTTPConfig{URL: provider.URL, Body: `{"id":"{{.TaskID}}","to":"{{.PhoneNumber}}","text":"{{.Content}}"}`})
		require.NoError(t, err)
		return gatewaytest.Subject{Gateway: g, Sent: taken.sent, Stall: func() { close(stalled) }}
	})
}

func TestTheFlakyGatewayConformsWhileItWorks(t *testing.T) {
	t.Parallel()
	gatewaytest.Run(t, func(t *testing.T) gatewaytest.Subject { return flakySubject(t, sender.FlakyConfig{}) })
}

func TestTheFlakyGatewayHeedsItsTimeWhileItHangs(t *testing.T) {
	t.Parallel()
	s := flakySubject(t, sender.FlakyConfig{Shares: map[string]float64{"hang": 1}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, sender.Released, s.Gateway.Send(ctx, hello).Outcome)
	require.Zero(t, s.Sent(hello))
}

func flakySubject(t *testing.T, cfg sender.FlakyConfig) gatewaytest.Subject {
	t.Helper()
	f, err := sender.NewFlaky(cfg)
	require.NoError(t, err)
	return gatewaytest.Subject{Gateway: f, Sent: func(m sender.Message) int { return f.Ledger()[sender.Sent{TaskID: m.TaskID, ClaimID: m.ClaimID}] }}
}

// The gateways that break a rule, each in its way, and the rule.
var liars = map[string]struct {
	rule string
	send func(ctx context.Context, m sender.Message, provider *ledger) sender.Result
}{
	"sends nothing": {"a message is sent once", func(context.Context, sender.Message, *ledger) sender.Result {
		return sender.Result{Outcome: sender.OK}
	}},
	"sends twice": {"many messages at once are each sent once", func(_ context.Context, m sender.Message, p *ledger) sender.Result {
		p.take(m.TaskID)
		p.take(m.TaskID)
		return sender.Result{Outcome: sender.OK}
	}},
	"chokes on a quote": {"whatever a message says is sent as data", func(_ context.Context, m sender.Message, p *ledger) sender.Result {
		if strings.Contains(m.Content, `"`) {
			return sender.Result{Outcome: sender.Failed}
		}
		p.take(m.TaskID)
		return sender.Result{Outcome: sender.OK}
	}},
	"says ok too late": {"what begins after ctx has ended says no untruth", func(ctx context.Context, m sender.Message, p *ledger) sender.Result {
		if ctx.Err() == nil {
			p.take(m.TaskID)
		}
		return sender.Result{Outcome: sender.OK}
	}},
	"releases what it sent": {"ctx that ends at any instant makes no untruth", func(ctx context.Context, m sender.Message, p *ledger) sender.Result {
		p.take(m.TaskID)
		<-ctx.Done()
		return sender.Result{Outcome: sender.Released}
	}},
	"waits for ever": {"a provider that does not answer is waited for no longer than ctx", func(context.Context, sender.Message, *ledger) sender.Result {
		select {}
	}},
}

// A test that must fail runs in a process of its own.
func TestTheSuiteCatchesALiar(t *testing.T) {
	t.Parallel()
	if name := os.Getenv("GATEWAYTEST_LIAR"); name != "" {
		gatewaytest.Run(t, func(*testing.T) gatewaytest.Subject {
			provider := newLedger()
			return gatewaytest.Subject{
				Gateway: sender.GatewayFunc(func(ctx context.Context, m sender.Message) sender.Result { return liars[name].send(ctx, m, provider) }),
				Sent:    provider.sent, Stall: func() {},
			}
		})
		return
	}
	for name, liar := range liars {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := strings.ReplaceAll(liar.rule, " ", "_")
			again := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestTheSuiteCatchesALiar$/^"+rule+"$")
			again.Env = append(os.Environ(), "GATEWAYTEST_LIAR="+name)
			out, err := again.CombinedOutput()
			require.Error(t, err, string(out))
			require.Contains(t, string(out), "--- FAIL: TestTheSuiteCatchesALiar/"+rule)
		})
	}
}
