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

// The moods of a Flaky gateway beside the words of the outcomes.
const (
	moodPanic = "panic" // it panics after the message has left
	moodHang  = "hang"  // the message has left, and no answer comes
)

// FlakyConfig says how a Flaky gateway fails. Its words are those of the
// outcomes (ok, failed, retryable, released, unknown), panic and hang.
type FlakyConfig struct {
	Script []string           // what happens to the first messages, in this order
	Shares map[string]float64 // of those after them; what is left of 1 is ok
	Seed   uint64             // the same seed makes the same choices
}

// Flaky is a Gateway that fails on demand, and whose provider remembers what
// reached it.
type Flaky struct {
	cfg   FlakyConfig
	words []string // of the shares

	mu     sync.Mutex
	script []string
	chance *rand.Rand
	ledger map[Sent]int
}

// Sent names an attempt at a task.
type Sent struct {
	TaskID  string
	ClaimID int64
}

// NewFlaky makes a flaky gateway. The error names everything that is wrong with
// cfg.
func NewFlaky(cfg FlakyConfig) (*Flaky, error) {
	var bad []error
	check := func(word string) {
		if _, known := ParseOutcome(word); !known && word != moodPanic && word != moodHang {
			bad = append(bad, fmt.Errorf("%q is none of %s, %s, %s", word, strings.Join(outcomeWords, ", "), moodPanic, moodHang))
		}
	}
	for _, word := range cfg.Script {
		check(word)
	}
	words, sum := slices.Sorted(maps.Keys(cfg.Shares)), 0.0
	for _, word := range words {
		check(word)
		share := cfg.Shares[word]
		if !(share >= 0 && share <= 1) {
			bad = append(bad, fmt.Errorf("the share of %s must be from 0 to 1", word))
		}
		sum += share
	}
	if sum > 1+1e-9 {
		bad = append(bad, errors.New("the shares are more than 1 together"))
	}
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	return &Flaky{
		cfg: cfg, words: words, script: cfg.Script, chance: rand.New(rand.NewPCG(cfg.Seed, 0)), ledger: map[Sent]int{},
	}, nil
}

// Send does what is next.
func (f *Flaky) Send(ctx context.Context, m Message) Result {
	if err := ctx.Err(); err != nil {
		return notSent(err)
	}
	switch mood := f.next(m); mood {
	case moodPanic:
		panic("flaky: on demand")
	case moodHang:
		<-ctx.Done()
		return Result{Message: "no answer: " + context.Cause(ctx).Error()}
	default:
		outcome, _ := ParseOutcome(mood)
		return Result{Outcome: outcome}
	}
}

// next picks a mood, and remembers a message that leaves.
func (f *Flaky) next(m Message) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	mood := f.pick()
	switch mood {
	case Failed.String(), Retryable.String(), Released.String():
	default:
		f.ledger[Sent{m.TaskID, m.ClaimID}]++
	}
	return mood
}

func (f *Flaky) pick() string {
	if len(f.script) > 0 {
		mood := f.script[0]
		f.script = f.script[1:]
		return mood
	}
	at := f.chance.Float64()
	for _, word := range f.words {
		if at -= f.cfg.Shares[word]; at < 0 {
			return word
		}
	}
	return OK.String()
}

// Ledger is how often each attempt reached the provider, so far.
func (f *Flaky) Ledger() map[Sent]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.ledger)
}
