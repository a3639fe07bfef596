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

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// killPoint is a moment at which a sender is killed. The test recognises the moment by the calls to the service and the
// provider, because the sender has no hooks.
type killPoint string

const (
	claimResponse  killPoint = "tasks are claimed, the response is not received"
	markRequest    killPoint = "a task is not marked as sending yet"
	markResponse   killPoint = "a task is marked as sending, the response is not received"
	sendConnection killPoint = "the journal has the attempt, nothing is sent"
	sendRequest    killPoint = "the message is sent, not accepted"
	sendResponse   killPoint = "the message is accepted, the response is not received"
	reportRequest  killPoint = "the journal has the result, nothing is reported"
	reportResponse killPoint = "the result is reported, the response is not received"
)

// senderRun is a sender process between a service and a provider. A call that reaches the kill point in the field trap
// waits until the sender is killed.
type senderRun struct {
	t        *testing.T
	service  *cluster.Client
	queue    string
	proxy    *httptest.Server // between the sender and the service
	provider *httptest.Server
	journal  string
	bin      string
	process  *sandbox.Process

	mu       sync.Mutex
	trap     killPoint
	caught   chan struct{}      // closed when a call has reached the kill point
	dead     chan struct{}      // closed when the sender is killed
	ledger   map[string][]int64 // of the provider: the claim ids of the accepted messages by task
	total    int                // accepted messages
	accepted *sync.Cond         // signalled when total changes
}

// startSenderRun starts a proxy and a provider, but no sender yet. Each run has a queue of its own, so that runs can share
// a service.
func startSenderRun(t *testing.T, service *cluster.Client, trap killPoint) *senderRun {
	t.Helper()
	h := &senderRun{
		t: t, service: service, queue: "q-" + strings.ToLower(api.NewKey()[:12]), journal: filepath.Join(t.TempDir(), "journal"),
		bin: sandbox.Build(t, "github.com/sendonce/sendonce/scripts/sender"), trap: trap,
		caught: make(chan struct{}), dead: make(chan struct{}), ledger: map[string][]int64{},
	}
	h.accepted = sync.NewCond(&h.mu)
	at, err := url.Parse(service.URL)
	require.NoError(t, err)
	h.proxy = httptest.NewServer(h.watch(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(at) },
		ModifyResponse: h.watchResponse,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}))
	t.Cleanup(h.proxy.Close)
	h.provider = httptest.NewUnstartedServer(http.HandlerFunc(h.serveProvider))
	h.provider.Listener = gate{h.provider.Listener, h}
	h.provider.Start()
	t.Cleanup(h.provider.Close)
	return h
}

// reach is called at each kill point m, and reports whether the call may continue. If m is the kill point in the field
// trap, reach waits until the sender is killed, and returns false.
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

// watch serves the calls of the sender to the service, with the kill points of requests.
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
		if isMark && !h.reach(markRequest) || strings.HasSuffix(r.URL.Path, "/report/batch") && !h.reach(reportRequest) {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

var errCaught = errors.New("the sender was killed before it had the response")

// watchResponse has the kill points of responses of the service.
func (h *senderRun) watchResponse(res *http.Response) error {
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	path := res.Request.URL.Path
	switch {
	case strings.HasSuffix(path, "/tasks/pending") && bytes.Contains(body, []byte(`"claim_id"`)) && !h.reach(claimResponse),
		res.Request.Header.Get("X-Mark") != "" && !h.reach(markResponse),
		strings.HasSuffix(path, "/report/batch") && !h.reach(reportResponse):
		return errCaught
	}
	return nil
}

// gate is the listener of the provider. At the kill point sendConnection, it closes the connection before the provider
// receives a message.
type gate struct {
	net.Listener
	run *senderRun
}

func (g gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil || g.run.reach(sendConnection) {
			return conn, err
		}
		if err := conn.Close(); err != nil {
			return nil, err
		}
	}
}

// serveProvider receives a message as the provider, with the kill points sendRequest and sendResponse.
func (h *senderRun) serveProvider(_ http.ResponseWriter, r *http.Request) {
	var m struct {
		ID    string
		Claim int64
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil || !h.reach(sendRequest) {
		panic(http.ErrAbortHandler)
	}
	h.mu.Lock()
	h.ledger[m.ID] = append(h.ledger[m.ID], m.Claim)
	h.total++
	h.accepted.Broadcast()
	h.mu.Unlock()
	if !h.reach(sendResponse) {
		panic(http.ErrAbortHandler)
	}
}

func (h *senderRun) submit(policy string) string {
	h.t.Helper()
	sent := h.service.Post("/api/v1/sms/send", fmt.Sprintf(`{"phone_number":"13800138000","content":"hi","queue":%q,"on_unknown":%q}`, h.queue, policy))
	return sent.RequireOK().Data("task_id").(string)
}

func (h *senderRun) start(concurrency string) {
	h.t.Helper()
	h.process = cluster.StartProcess(h.t, h.bin, []string{
		"SENDONCE_URL=" + h.proxy.URL, "SENDONCE_USER=" + h.service.User, "SENDONCE_PASSWORD=" + h.service.Password, "SENDER_APP=" + h.queue,
		"SENDER_QUEUE=" + h.queue, "SENDER_JOURNAL=" + h.journal, "SENDER_LEASE=1h", "SENDER_CONCURRENCY=" + concurrency,
		"SENDER_GATEWAY=http", "SENDER_HTTP_URL=" + h.provider.URL, `SENDER_HTTP_BODY={"id":"{{.TaskID}}","claim":{{.ClaimID}}}`,
	})
}

// count returns the number of live tasks of the queue in some states.
func (h *senderRun) count(states ...int) int {
	return h.service.Count(`select count(*) from task_live where queue = $1 and state = any($2)`, h.queue, states)
}

const (
	statePending    = 1
	stateProcessing = 2
)

// waitUntil is cluster.Eventually, but logs the output of the sender if the test fails.
func (h *senderRun) waitUntil(done func() bool) {
	h.t.Helper()
	defer func() {
		if h.t.Failed() {
			h.t.Log(h.process.Output())
		}
	}()
	cluster.Eventually(h.t, done)
}

// waitSettled waits until no task is pending or claimed.
func (h *senderRun) waitSettled() {
	h.t.Helper()
	h.waitUntil(func() bool { return h.count(statePending, stateProcessing) == 0 })
}

// stop waits until no task is pending, and ends the sender gracefully. Then only tasks of killed senders are still
// claimed.
func (h *senderRun) stop() {
	h.t.Helper()
	h.waitUntil(func() bool { return h.count(statePending) == 0 })
	code, err := h.process.Terminate(cluster.WaitLimit)
	require.NoError(h.t, err)
	require.Zero(h.t, code, h.process.Output())
}

// expireLeases ends the leases of claimed tasks.
func (h *senderRun) expireLeases() {
	h.service.Exec(`update task_live set due_at = now() where queue = $1 and state = $2`, h.queue, stateProcessing)
}

func (h *senderRun) state(task string) string {
	h.t.Helper()
	return h.service.Get("/api/v1/sms/task/" + task).Data("state").(string)
}

// requirePromises requires what a sender promises for each task. tasks has the on_unknown of each task.
func (h *senderRun) requirePromises(tasks map[string]string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for task, policy := range tasks {
		sends, perClaim := h.ledger[task], map[int64]int{}
		for _, claim := range sends {
			perClaim[claim]++
			require.Equal(h.t, 1, perClaim[claim], "no claim is sent twice")
		}
		require.LessOrEqual(h.t, len(sends), h.service.Count(`select count(*) from send_logs where task_id = $1`, task), "no more sends than claims")
		if policy != "resend" {
			require.LessOrEqual(h.t, len(sends), 1, policy)
		}
		state := h.state(task)
		require.Contains(h.t, map[string][]string{"resend": {"succeeded"}, "hold": {"succeeded", "held"}, "fail": {"succeeded", "failed"}}[policy], state)
		if state == "succeeded" {
			require.NotEmpty(h.t, sends, "a succeeded task was sent")
		}
	}
}

func TestKilledSenderRepeatsNoAttempt(t *testing.T) {
	t.Parallel()
	service, _ := cluster.StartServer(t, sandbox.NewDatabase(t))
	for _, c := range []struct {
		at        killPoint
		policy    string // on_unknown
		journaled bool   // the restarted sender reports the attempt; if false, the task stays claimed until its lease ends
		sends     int    // the final number of sends
		state     string // the final state
	}{
		{claimResponse, "hold", false, 1, "succeeded"},
		{markRequest, "hold", false, 1, "succeeded"},
		{markResponse, "hold", false, 0, "held"},
		{sendConnection, "hold", true, 0, "held"},
		{sendRequest, "hold", true, 0, "held"},
		{sendResponse, "resend", true, 2, "succeeded"},
		{sendResponse, "hold", true, 1, "held"},
		{sendResponse, "fail", true, 1, "failed"},
		{reportRequest, "hold", true, 1, "succeeded"},
		{reportResponse, "hold", true, 1, "succeeded"},
	} {
		t.Run(string(c.at)+", "+c.policy, func(t *testing.T) {
			t.Parallel()
			service := *service
			service.T = t
			service.Connect(service.Owner.Config().ConnString())
			h := startSenderRun(t, &service, c.at)
			victim := h.submit(c.policy)
			tasks := map[string]string{victim: c.policy}
			for range 4 {
				tasks[h.submit(c.policy)] = c.policy
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
			h.waitSettled()
			h.requirePromises(tasks)
			require.Len(t, h.ledger[victim], c.sends)
			require.Equal(t, c.state, h.state(victim))
		})
	}
}

// kill waits until the sender reaches its kill point, and kills it.
func (h *senderRun) kill() {
	h.t.Helper()
	select {
	case <-h.caught:
	case <-time.After(cluster.WaitLimit):
		h.t.Fatal("the sender did not reach the kill point\n" + h.process.Output())
	}
	require.NoError(h.t, h.process.Kill())
	close(h.dead)
}

// The sender is killed while several sends are in progress, at no particular point.
func TestSenderKilledRepeatedlyKeepsPromises(t *testing.T) {
	t.Parallel()
	service, _ := cluster.StartServer(t, sandbox.NewDatabase(t))
	h := startSenderRun(t, service, "")
	tasks := map[string]string{}
	for n := range 150 {
		policy := []string{"resend", "hold", "fail"}[n%3]
		tasks[h.submit(policy)] = policy
	}
	for n := range 6 {
		h.start("5")
		h.waitAccepted(4 + n)
		require.NoError(t, h.process.Kill())
	}
	h.start("5")
	h.stop()
	h.expireLeases()
	h.start("5")
	h.waitSettled()
	h.requirePromises(tasks)
}

// waitAccepted waits until the provider has accepted n more messages.
func (h *senderRun) waitAccepted(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for want := h.total + n; h.total < want; {
		h.accepted.Wait()
	}
}
