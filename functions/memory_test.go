package functions

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// The attacker makes so many calls at once, and each of them so often. `make attack`
// makes the first 64, and then also holds the neighbour's calls to their time.
var (
	attackWidth  = numberFrom("SENDONCE_ATTACK_CALLS", 12)
	attackRounds = numberFrom("SENDONCE_ATTACK_ROUNDS", 1)
	wholeAttack  = os.Getenv("SENDONCE_ATTACK_CALLS") != ""
)

// attackTime is how long the whole attack lasts at least.
const attackTime = 5 * time.Second

// shortAttacks are those of `make test`: they used the most memory of all.
var shortAttacks = []string{"half-sent bodies", "batch of many items", "batch of bad fields", "largest report batch", "unread pages", "lists of dead letters"}

// maxResident is what a function may use: containers have 256 MB.
const maxResident = 200 << 20

func numberFrom(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// attack is one way to have a function hold much memory.
type attack struct {
	name     string
	function string
	prepare  func(t *target)
	once     func(t *target, worker int) error  // one call of the attacker
	quiet    func(t *target) (want int, c call) // of a neighbour, and how it is answered
	small    bool                               // many small calls, which the bound of calls is for
}

// call is an HTTP request.
type call struct {
	method, path, body, kind string
	header                   []string // names and values in turn
}

// target is one function as a process of its own.
type target struct {
	t       *testing.T
	url     string
	db      *server // looks into its database
	process *sandbox.Process
	nats    *sandbox.NATS
	client  *http.Client
	body    string            // what the attack sends, made once
	answers [600]atomic.Int64 // by status
}

func TestMemoryStaysBoundedUnderAttack(t *testing.T) {
	if !wholeAttack {
		t.Parallel()
	}
	for _, a := range attacks() {
		if !wholeAttack && !slices.Contains(shortAttacks, a.name) {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			if !wholeAttack {
				t.Parallel()
			}
			target := start(t, a.function)
			if a.prepare != nil {
				a.prepare(target)
			}
			idle := target.neighbour(a, 20)
			done := make(chan struct{})
			go func() {
				defer close(done)
				target.attack(a)
			}()
			busy := target.neighbourUntil(a, done)
			peak := target.peak()
			t.Logf("%-28s peak %3d MB, neighbour p50 %v idle, %v under attack (%d calls); answers %s", a.name, peak>>20,
				idle.Round(10*time.Microsecond), busy.p50.Round(10*time.Microsecond), busy.calls, target.statuses())
			require.Less(t, peak, int64(maxResident), "resident memory of %s", a.function)
			require.Zero(t, target.answers[500].Load())
			if wholeAttack && !a.small {
				require.LessOrEqual(t, busy.p50, max(5*idle, 5*time.Millisecond), "the neighbour's calls")
			}
		})
	}
}

// start starts one function with an attacker and a neighbour who may call it.
func start(t *testing.T, function string) *target {
	t.Helper()
	url := sandbox.NewDatabase(t)
	o := &target{t: t, nats: sandbox.NewNATS(t), db: (&server{t: t}).connect(url)}
	hash := sha256.Sum256([]byte("secret"))
	for _, name := range []string{"mallory", "ann"} {
		o.db.exec(`insert into callers (name, token_hash, roles, queues) values ($1, $2, '{submitter,sender,receiver,trigger,admin}', '{}')`, name, hash[:])
	}
	o.process = sandbox.StartProcess(t, binary(t), settings(url, "FUNCTION_TARGET="+function, "NATS_URL="+o.nats.URL(), "SENDONCE_OUTGOING_NETWORKS=127.0.0.0/8"))
	o.url = address(t, o.process)
	o.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	return o
}

// do makes a call as somebody and reads its answer.
func (o *target) do(as string, c call) (status int, err error) {
	req, err := http.NewRequestWithContext(context.Background(), c.method, o.url+c.path, strings.NewReader(c.body))
	if err != nil {
		return 0, err
	}
	req.SetBasicAuth(as, "secret")
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.kind != "" {
		req.Header.Set("Content-Type", c.kind)
	}
	for i := 0; i+1 < len(c.header); i += 2 {
		req.Header.Set(c.header[i], c.header[i+1])
	}
	res, err := o.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// as makes a call of the attacker and counts its answer. A connection that the
// server closes on a body that it refuses is an answer too.
func (o *target) as(c call) error {
	status, err := o.do("mallory", c)
	if err != nil {
		status = 0
	}
	o.answers[status].Add(1)
	return nil
}

func (o *target) attack(a attack) {
	var all sync.WaitGroup
	began := time.Now()
	for worker := range attackWidth {
		all.Go(func() {
			for round := 0; round < attackRounds || wholeAttack && time.Since(began) < attackTime; round++ {
				if err := a.once(o, worker); err != nil {
					o.t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// neighbour is the median time of n calls.
func (o *target) neighbour(a attack, n int) time.Duration {
	took := make([]time.Duration, n)
	for i := range took {
		took[i] = o.neighbourly(a)
	}
	slices.Sort(took)
	return took[n/2]
}

func (o *target) neighbourly(a attack) time.Duration {
	want, c := a.quiet(o)
	began := time.Now()
	status, err := o.do("ann", c)
	if err != nil || status != want {
		o.t.Errorf("the neighbour's call was answered %d (%v), not %d", status, err, want)
	}
	return time.Since(began)
}

type busyTime struct {
	p50   time.Duration
	calls int
}

// neighbourUntil makes the neighbour's calls one after another for as long as
// the attack lasts.
func (o *target) neighbourUntil(a attack, done <-chan struct{}) busyTime {
	var took []time.Duration
	for {
		took = append(took, o.neighbourly(a))
		select {
		case <-done:
			slices.Sort(took)
			return busyTime{took[len(took)/2], len(took)}
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// peak is the most memory that the process has had.
func (o *target) peak() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.process.Pid()))
	require.NoError(o.t, err, o.process.Output())
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			require.NoError(o.t, err)
			return kb << 10
		}
	}
	o.t.Fatal("no VmHWM")
	return 0
}

func (o *target) statuses() string {
	var b strings.Builder
	for status := range o.answers {
		if n := o.answers[status].Load(); n > 0 {
			fmt.Fprintf(&b, "%d:%d ", status, n)
		}
	}
	return b.String()
}
