package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// killPoint is a moment at which a sender is killed. It is found from what the service
// and the provider receive, as the sender has no hooks.
type killPoint string

const (
	claimResponded killPoint = "the claim is made and its response on its way"
	markAsked      killPoint = "it is about to mark a task as sending"
	marked         killPoint = "a task is marked and the response on its way"
	connected      killPoint = "its journal has the attempt and nothing has left"
	arrived        killPoint = "the message has left and is not accepted"
	taken          killPoint = "the message is accepted and the response on its way"
	reportAsked    killPoint = "its journal has the result and nothing is reported"
	reported       killPoint = "the result is reported and the response on its way"
)

// senderRun is a service, a provider, and a sender process that is killed.
type senderRun struct {
	t        *testing.T
	service  *cluster.Client
	queue    string
	proxy    *httptest.Server // the service, as the sender sees it
	provider *httptest.Server
	journal  string
	bin      string
	process  *sandbox.Process

	mu     sync.Mutex
	trap   killPoint
	caught chan struct{}
	dead   chan struct{}
	ledger map[string][]int64 // the provider's: claims by task
	took   *sync.Cond
	total  int
}

// startSenderRun uses a queue of its own, so that runs can share a service.
func startSenderRun(t *testing.T, service *cluster.Client, trap killPoint) *senderRun {
	t.Helper()
	h := &senderRun{
		t: t, service: service, queue: "q-" + strings.ToLower(api.NewKey()[:12]), journal: filepath.Join(t.TempDir(), "journal"),
		bin: sandbox.Build(t, "github.com/sendonce/sendonce/scripts/sender"), trap: trap,
		caught: make(chan struct{}), dead: make(chan struct{}), ledger: map[string][]int64{},
	}
	h.took = sync.NewCond(&h.mu)
	at, err := url.Parse(service.URL)
	require.NoError(t, err)
	h.proxy = httptest.NewServer(h.watch(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(at) },
		ModifyResponse: h.watchResponse,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}))
	t.Cleanup(h.proxy.Close)
	h.provider = httptest.NewUnstartedServer(http.HandlerFunc(h.take))
	h.provider.Listener = gate{h.provider.Listener, h}
	h.provider.Start()
	t.Cleanup(h.provider.Close)
	return h
}

// reach blocks the call that gets to the chosen kill point until the sender is dead. It
// returns whether the call goes on.
func (h *senderRun) reach(m killPoint) bool {
	h.mu.Lock()
	caught := h.trap == m
	if caught {
		h.trap = ""
	}
	h.mu.Unlock()
	if caught {
		close(h.caught)
		<-h.dead
	}
	return !caught
}

func (h *senderRun) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		isMark := bytes.Contains(body, []byte(`"sending":true`))
		if isMark {
			r.Header.Set("X-Mark", "true")
		}
		if isMark && !h.reach(markAsked) || strings.HasSuffix(r.URL.Path, "/report/batch") && !h.reach(reportAsked) {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

var errCaught = errors.New("the sender was killed before it had the response")

func (h *senderRun) watchResponse(res *http.Response) error {
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	path := res.Request.URL.Path
	switch {
	case strings.HasSuffix(path, "/tasks/pending") && bytes.Contains(body, []byte(`"claim_id"`)) && !h.reach(claimResponded),
		res.Request.Header.Get("X-Mark") != "" && !h.reach(marked),
		strings.HasSuffix(path, "/report/batch") && !h.reach(reported):
		return errCaught
	}
	return nil
}

// gate is the provider's listener: it closes a connection before it reads a message.
type gate struct {
	net.Listener
	run *senderRun
}

func (g gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil || g.run.reach(connected) {
			return conn, err
		}
		if err := conn.Close(); err != nil {
			return nil, err
		}
	}
}

// take handles a message as the provider.
func (h *senderRun) take(_ http.ResponseWriter, r *http.Request) {
	var m struct {
		ID    string
		Claim int64
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil || !h.reach(arrived) {
		panic(http.ErrAbortHandler)
	}
	h.mu.Lock()
	h.ledger[m.ID] = append(h.ledger[m.ID], m.Claim)
	h.total++
	h.took.Broadcast()
	h.mu.Unlock()
	if !h.reach(taken) {
		panic(http.ErrAbortHandler)
	}
}

func (h *senderRun) submit(policy string) string {
	h.t.Helper()
	sent := h.service.Post("/api/v1/sms/send", fmt.Sprintf(`{"phone_number":"13800138000","content":"hi","queue":%q,"on_unknown":%q}`, h.queue, policy))
	require.Equal(h.t, 200, sent.Status, sent.Text)
	return sent.Data("task_id").(string)
}

func (h *senderRun) start(concurrency string) {
	h.t.Helper()
	h.process = cluster.StartProcess(h.t, h.bin, []string{
		"SENDONCE_URL=" + h.proxy.URL, "SENDONCE_USER=" + h.service.User, "SENDONCE_PASSWORD=" + h.service.Password, "SENDER_APP=" + h.queue,
		"SENDER_QUEUE=" + h.queue, "SENDER_JOURNAL=" + h.journal, "SENDER_LEASE=1h", "SENDER_CONCURRENCY=" + concurrency,
		"SENDER_GATEWAY=http", "SENDER_HTTP_URL=" + h.provider.URL, `SENDER_HTTP_BODY={"id":"{{.TaskID}}","claim":{{.ClaimID}}}`,
	})
}

// in counts the tasks of the queue in some states.
func (h *senderRun) in(states ...int) int {
	return h.service.Count(`select count(*) from task_live where queue = $1 and state = any($2)`, h.queue, states)
}

const (
	statePending    = 1
	stateProcessing = 2
)

// until waits for a condition, and prints the sender's output if it stays false.
func (h *senderRun) until(done func() bool) {
	h.t.Helper()
	if !assert.Eventually(h.t, done, cluster.WaitLimit, 5*time.Millisecond) {
		h.t.Fatal(h.process.Output())
	}
}

// settles waits until no task is pending or claimed.
func (h *senderRun) settles() {
	h.t.Helper()
	h.until(func() bool { return h.in(statePending, stateProcessing) == 0 })
}

// stop ends the sender gracefully: tasks that are still claimed then are those of killed
// senders.
func (h *senderRun) stop() {
	h.t.Helper()
	h.until(func() bool { return h.in(statePending) == 0 })
	code, err := h.process.Terminate(cluster.WaitLimit)
	require.NoError(h.t, err)
	require.Zero(h.t, code, h.process.Output())
}

// expireLeases ends the leases of claimed tasks.
func (h *senderRun) expireLeases() {
	h.service.Exec(`update task_live set due_at = now() where queue = $1 and state = 2`, h.queue)
}

func (h *senderRun) state(task string) string {
	h.t.Helper()
	return h.service.Get("/api/v1/sms/task/" + task).Data("state").(string)
}

// keeps demands what holds for each task, whatever happened.
func (h *senderRun) keeps(tasks map[string]string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for task, policy := range tasks {
		sends, perClaim := h.ledger[task], map[int64]int{}
		for _, claim := range sends {
			perClaim[claim]++
			require.Equal(h.t, 1, perClaim[claim], "a claim is sent once")
		}
		require.LessOrEqual(h.t, len(sends), h.service.Count(`select count(*) from send_logs where task_id = $1`, task), "no more sends than claims")
		if policy != "resend" {
			require.LessOrEqual(h.t, len(sends), 1, policy)
		}
		state := h.state(task)
		require.Contains(h.t, map[string][]string{"resend": {"succeeded"}, "hold": {"succeeded", "held"}, "fail": {"succeeded", "failed"}}[policy], state)
		if state == "succeeded" {
			require.NotEmpty(h.t, sends, "what succeeded was sent")
		}
	}
}

func startService(t *testing.T) *cluster.Client {
	t.Helper()
	url := sandbox.NewDatabase(t)
	p := cluster.StartProcess(t, cluster.Binary(t), cluster.Settings(url))
	return cluster.NewClient(t, cluster.Address(t, p)).Connect(url)
}

func TestKilledSenderRepeatsNothingBegun(t *testing.T) {
	t.Parallel()
	service := startService(t)
	for _, c := range []struct {
		at        killPoint
		journaled bool              // the next start settles the attempt; else the end of its lease does
		sends     map[string]int    // in the end, by on_unknown
		ends      map[string]string // the state, by on_unknown
	}{
		{claimResponded, false, all(1), succeeds()},
		{markAsked, false, all(1), succeeds()},
		{marked, false, map[string]int{"resend": 1}, asChosen()},
		{connected, true, map[string]int{"resend": 1}, asChosen()},
		{arrived, true, map[string]int{"resend": 1}, asChosen()},
		{taken, true, map[string]int{"resend": 2, "hold": 1, "fail": 1}, asChosen()},
		{reportAsked, true, all(1), succeeds()},
		{reported, true, all(1), succeeds()},
	} {
		policies := []string{"hold"}
		if c.at == taken {
			policies = []string{"resend", "hold", "fail"}
		}
		for _, policy := range policies {
			t.Run(string(c.at)+", "+policy, func(t *testing.T) {
				t.Parallel()
				service := *service
				service.T = t
				service.Connect(service.Owner.Config().ConnString())
				h := startSenderRun(t, &service, c.at)
				victim := h.submit(policy)
				tasks := map[string]string{victim: policy}
				for range 4 {
					tasks[h.submit(policy)] = policy
				}
				h.start("1")
				h.kill()
				h.start("1")
				if c.journaled {
					cluster.Eventually(t, func() bool { return h.state(victim) != "processing" })
				}
				h.stop()
				if !c.journaled {
					require.Equal(t, "processing", h.state(victim))
				}
				h.expireLeases()
				h.start("1")
				h.settles()
				h.keeps(tasks)
				require.Len(t, h.ledger[victim], c.sends[policy])
				require.Equal(t, c.ends[policy], h.state(victim))
			})
		}
	}
}

func all(n int) map[string]int { return map[string]int{"resend": n, "hold": n, "fail": n} }

func succeeds() map[string]string {
	return map[string]string{"resend": "succeeded", "hold": "succeeded", "fail": "succeeded"}
}

// asChosen returns the state of an unknown outcome by on_unknown.
func asChosen() map[string]string {
	return map[string]string{"resend": "succeeded", "hold": "held", "fail": "failed"}
}

// kill kills the sender at its kill point.
func (h *senderRun) kill() {
	h.t.Helper()
	select {
	case <-h.caught:
	case <-time.After(cluster.WaitLimit):
		h.t.Fatal("the moment did not come\n" + h.process.Output())
	}
	require.NoError(h.t, h.process.Kill())
	close(h.dead)
}

// The kills come while several sends are under way, wherever each of them is.
func TestSenderKilledRepeatedlyKeepsPromises(t *testing.T) {
	t.Parallel()
	h := startSenderRun(t, startService(t), "")
	tasks := map[string]string{}
	for n := range 150 {
		policy := []string{"resend", "hold", "fail"}[n%3]
		tasks[h.submit(policy)] = policy
	}
	for n := range 6 {
		h.start("5")
		h.untilTaken(4 + n) // fifteen more may be claimed
		require.NoError(t, h.process.Kill())
	}
	h.start("5")
	h.stop()
	h.expireLeases()
	h.start("5")
	h.settles()
	h.keeps(tasks)
}

// untilTaken waits until the provider has taken n more messages.
func (h *senderRun) untilTaken(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for until := h.total + n; h.total < until; {
		h.took.Wait()
	}
}
