package sender

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// The behaviours of a Flaky gateway, in addition to the names of the outcomes.
const (
	behaviourPanic = "panic" // the message counts as sent, and Send panics
	behaviourHang  = "hang"  // the message counts as sent, and Send waits until ctx ends
)

// FlakyConfig configures how a Flaky gateway fails. A behaviour is an outcome (ok, failed, retryable, released,
// unknown), panic or hang.
type FlakyConfig struct {
	Script []string           // the behaviours for the first messages, in this order
	Shares map[string]float64 // the probability of each behaviour after the script, from 0 to 1; the rest is ok
	Seed   uint64             // of the random numbers: the same seed makes the same choices
}

// Flaky is a Gateway for tests. It sends nothing: it behaves as configured, and counts which messages a real gateway
// with this behaviour would have sent.
type Flaky struct {
	cfg    FlakyConfig
	shares []string // the behaviours in cfg.Shares, sorted

	mu     sync.Mutex
	script []string
	random *rand.Rand
	ledger map[SentAttempt]int
}

// SentAttempt identifies an attempt whose message was sent.
type SentAttempt struct {
	TaskID  string
	ClaimID int64
}

// NewFlaky makes a flaky gateway. The error names everything that is wrong with cfg.
func NewFlaky(cfg FlakyConfig) (*Flaky, error) {
	var bad []error
	check := func(name string) {
		if _, known := ParseOutcome(name); !known && name != behaviourPanic && name != behaviourHang {
			bad = append(bad, fmt.Errorf("%q is none of %s, %s, %s", name, strings.Join(outcomeNames, ", "), behaviourPanic, behaviourHang))
		}
	}
	for _, name := range cfg.Script {
		check(name)
	}
	shares, sum := slices.Sorted(maps.Keys(cfg.Shares)), 0.0
	for _, name := range shares {
		check(name)
		share := cfg.Shares[name]
		if !(share >= 0 && share <= 1) {
			bad = append(bad, fmt.Errorf("the share of %s must be from 0 to 1", name))
		}
		sum += share
	}
	if sum > 1+1e-9 {
		bad = append(bad, errors.New("the sum of the shares must be at most 1"))
	}
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	return &Flaky{
		cfg: cfg, shares: shares, script: cfg.Script, random: rand.New(rand.NewPCG(cfg.Seed, 0)), ledger: map[SentAttempt]int{},
	}, nil
}

// Send implements Gateway.
func (f *Flaky) Send(ctx context.Context, m Message) Result {
	if err := ctx.Err(); err != nil {
		return notSent(err)
	}
	switch behaviour := f.next(m); behaviour {
	case behaviourPanic:
		panic("flaky: configured panic")
	case behaviourHang:
		<-ctx.Done()
		return Result{Message: "no response: " + context.Cause(ctx).Error()}
	default:
		outcome, _ := ParseOutcome(behaviour)
		return Result{Outcome: outcome}
	}
}

// next picks the behaviour for m. Unless the behaviour is failed, retryable or released, next counts m as sent.
func (f *Flaky) next(m Message) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	behaviour := f.pick()
	switch behaviour {
	case Failed.String(), Retryable.String(), Released.String():
	default:
		f.ledger[SentAttempt{m.TaskID, m.ClaimID}]++
	}
	return behaviour
}

func (f *Flaky) pick() string {
	if len(f.script) > 0 {
		behaviour := f.script[0]
		f.script = f.script[1:]
		return behaviour
	}
	at := f.random.Float64()
	for _, name := range f.shares {
		if at -= f.cfg.Shares[name]; at < 0 {
			return name
		}
	}
	return OK.String()
}

// Ledger returns how often the message of each attempt was sent. Attempts that sent nothing are absent.
func (f *Flaky) Ledger() map[SentAttempt]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.ledger)
}
