package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

var (
	attackWidth  = numberFrom("SENDONCE_ATTACK_CALLS", 8)  // number of workers of the attacker, which make calls concurrently
	attackRounds = numberFrom("SENDONCE_ATTACK_ROUNDS", 1) // number of rounds of each worker, at least

	// wholeAttack is true in `make attack`: all attacks run, one at a time, and the duration of the neighbour's calls is
	// limited too.
	wholeAttack = os.Getenv("SENDONCE_ATTACK_CALLS") != ""
)

// attackTime is the minimum duration of an attack in `make attack`.
const attackTime = 5 * time.Second

// shortAttacks are the attacks of `make test TAGS=slow`: those that use the most memory. Half-sent bodies and unread
// responses are not among them, because the tests of shared/fn show that their memory is bounded.
var shortAttacks = []string{"batch of many items", "batch of bad fields", "lists of dead letters"}

// maxResident limits the resident memory of the attacked process, in bytes. A container of a function has 256 MiB.
const maxResident = 200 << 20

// numberFrom reads a number from an environment variable; if the variable has none, it returns fallback.
func numberFrom(name string, fallback int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return fallback
}

// attack is one way to make a function use much memory. An attacker makes the calls of the attack; meanwhile another
// caller, the neighbour, makes normal calls, each of which must get the expected status.
type attack struct {
	name      string
	function  string // "" = all functions in one process
	role      string // "" = a submitter, sender and receiver; "admin" or "trigger"
	prepare   func(t *target)
	body      func() string                       // what the attacker sends, made once
	round     func(o *attacker, worker int) error // what a worker of the attacker does in each round, mostly one call
	together  []string                            // the names of other attacks, which are made at the same time; round is then nil
	neighbour func(t *target) (want int, c call)  // returns the next call of the neighbour, and the status that it must get

	status     int  // at least one call of the attacker must get this status: otherwise all calls were refused before they used memory; 0 = no response
	memoryOnly bool // the duration of the neighbour's calls is not limited
}

// rolesOf has the roles of the attacker and its neighbour, by the role of the attack. Only attacks on routes for admins
// are made by admins, because admins have their own limits of concurrency and memory.
var rolesOf = map[string]string{"": "{submitter,sender,receiver}", "admin": "{admin}", "trigger": "{trigger}"}

// nameOf returns the name of a caller in attacks with this role. who is "mallory", the attacker, or "ann", the
// neighbour.
func nameOf(who, role string) string {
	return strings.TrimSuffix(who+"-"+role, "-")
}

// call is an HTTP request.
type call struct {
	method, path, body string
	contentType        string   // "" = application/json, if there is a body
	header             []string // names and values alternately
}

// target is the attacked process: one function, or all functions.
type target struct {
	t       *testing.T
	url     string
	db      *cluster.Client // reads and writes the database of the process
	process *sandbox.Process
	nats    *natsserver.Server
	wechat  *sandbox.WeChat // nil if the attack needs no WeChat
	client  *http.Client
}

func TestMemoryStaysBoundedUnderAttack(t *testing.T) {
	sandbox.Slow(t)
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
			target := startTarget(t, a)
			idle := target.timeNeighbour(a, 20)
			attacker := target.startAttacker(a)
			busy := target.timeNeighbourUntil(a, attacker.Exited())
			responses := responsesOf(t, attacker)
			peak := target.peak()
			t.Logf("%-28s peak %3d MB, neighbour p50 %v idle, %v under attack (%d calls); responses %v", a.name, peak>>20,
				idle.Round(10*time.Microsecond), busy.p50.Round(10*time.Microsecond), busy.calls, responses)
			require.Less(t, peak, int64(maxResident), "resident memory of %s", a.function)
			require.Zero(t, responses[http.StatusInternalServerError])
			if a.together == nil {
				require.Positive(t, responses[a.status], "no call got %d: the attack was refused before it used memory", a.status)
			}
			if wholeAttack && !a.memoryOnly {
				require.LessOrEqual(t, busy.p50, max(5*idle, 5*time.Millisecond), "the neighbour's calls")
			}
		})
	}
}

// startTarget starts the process to attack. Its database has the callers of the attacker and the neighbour.
func startTarget(t *testing.T, a attack) *target {
	t.Helper()
	url := sandbox.NewDatabase(t)
	o := &target{t: t, nats: natsserver.New(t, natsserver.Options{}), db: cluster.NewClient(t, "").Connect(url)}
	hash := sha256.Sum256([]byte("secret"))
	for role, roles := range rolesOf {
		for _, who := range []string{"mallory", "ann"} {
			o.db.Exec(`insert into callers (name, token_hash, roles, queues) values ($1, $2, $3, '{}')`, nameOf(who, role), hash[:], roles)
		}
	}
	env := cluster.Settings(url, "NATS_URL="+o.nats.URL())
	if a.function != "" {
		env = append(env, "FUNCTION_TARGET="+a.function)
	}
	if a.function == "" || a.function == "wechat" {
		o.wechat = sandbox.NewWeChat(t, sandbox.WeChatOptions{})
		env = append(env, "WECHAT_BASE_URL="+o.wechat.URL(), "WECHAT_APP_ID="+sandbox.WeChatAppID, "WECHAT_APP_SECRET="+sandbox.WeChatSecret)
	}
	for _, kind := range attacks() {
		if (kind.name == a.name || slices.Contains(a.together, kind.name)) && kind.prepare != nil {
			kind.prepare(o)
		}
	}
	o.process = sandbox.StartProcess(t, cluster.Binary(t), env)
	o.url = cluster.Address(t, o.process)
	o.client = &http.Client{Timeout: 30 * time.Second}
	return o
}

// do makes the call as a caller and reads the response.
func (c call) do(client *http.Client, url, caller string) (status int, err error) {
	req, err := http.NewRequestWithContext(context.Background(), c.method, url+c.path, strings.NewReader(c.body))
	if err != nil {
		return 0, err
	}
	req.SetBasicAuth(caller, "secret")
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.contentType != "" {
		req.Header.Set("Content-Type", c.contentType)
	}
	for i := 0; i+1 < len(c.header); i += 2 {
		req.Header.Set(c.header[i], c.header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// startAttacker starts the attacker and waits until it begins.
func (o *target) startAttacker(a attack) *sandbox.Process {
	o.t.Helper()
	program, err := os.Executable()
	require.NoError(o.t, err)
	env := []string{attackerVariable + "=" + a.name, attackURLVariable + "=" + o.url}
	for _, name := range []string{"SENDONCE_ATTACK_CALLS", "SENDONCE_ATTACK_ROUNDS"} {
		if value, found := os.LookupEnv(name); found {
			env = append(env, name+"="+value)
		}
	}
	niceness := "0" // without `make attack`, other tests run at the same time: with a lower priority, the attacker would get no processor time
	if wholeAttack {
		niceness = "19"
	}
	p := sandbox.StartProcess(o.t, "nice", env, "-n", niceness, program)
	ctx, cancel := context.WithTimeout(o.t.Context(), cluster.WaitLimit)
	defer cancel()
	require.NoError(o.t, p.WaitFor(ctx, attacking), p.Output())
	return p
}

// responsesOf returns the number of responses by status of an attacker that has ended.
func responsesOf(t *testing.T, p *sandbox.Process) (responses map[int]int) {
	t.Helper()
	require.Zero(t, p.ExitCode(), p.Output())
	_, text, _ := strings.Cut(p.Output(), attacking)
	require.NoError(t, json.Unmarshal([]byte(text), &responses), p.Output())
	return responses
}

// timeNeighbour makes n calls of the neighbour and returns their median duration.
func (o *target) timeNeighbour(a attack, n int) time.Duration {
	took := make([]time.Duration, n)
	for i := range took {
		took[i] = o.neighbourCall(a)
	}
	slices.Sort(took)
	return took[n/2]
}

// neighbourCall makes a call of the neighbour and returns its duration. The test fails if the call gets a wrong status.
func (o *target) neighbourCall(a attack) time.Duration {
	want, c := a.neighbour(o)
	began := time.Now()
	status, err := c.do(o.client, o.url, nameOf("ann", a.role))
	if err != nil || status != want {
		o.t.Errorf("the neighbour's call got %d (%v), not %d", status, err, want)
	}
	return time.Since(began)
}

type busyTime struct {
	p50   time.Duration // median duration of the calls
	calls int
}

// timeNeighbourUntil makes calls of the neighbour, one after another, until the attack is done.
func (o *target) timeNeighbourUntil(a attack, done <-chan struct{}) busyTime {
	var took []time.Duration
	for {
		took = append(took, o.neighbourCall(a))
		select {
		case <-done:
			slices.Sort(took)
			return busyTime{took[len(took)/2], len(took)}
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// peak returns the maximum resident memory of the process, in bytes.
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
