package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// outage is how long a fault lasts: 2 s, or SENDONCE_FAULT_SECONDS.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SENDONCE_FAULT_SECONDS")
	if text == "" {
		return 2 * time.Second
	}
	seconds, err := strconv.Atoi(text)
	require.NoError(t, err, "SENDONCE_FAULT_SECONDS")
	return time.Duration(seconds) * time.Second
}

// The default safety tick is 15 minutes, so only the trigger's check after the outage can
// bring what was saved during it.
func TestMessagesSavedWithoutNATSAreSentOnce(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartFunctions("submit", "claim", "report")
	o.StartRelay()
	g, l := load.New(t.Context()), load.NewLedger()
	t.Cleanup(g.Stop)
	const pace = 10 * time.Millisecond
	for n := range 2 {
		g.Start("submit", pace, submitCall(calling(o, "submit"), l))
		g.Start("message", pace, messageCall(calling(o, "messages"), l, fmt.Sprint("sender-", n), "msg.orders.paid", "", cluster.WithoutConfirm))
	}
	g.Start("claim or report", pace, claimCall(o, l))
	wait(t, g, 20)
	require.NoError(t, o.NATS.Stop())
	for end := time.Now().Add(outage(t)); time.Now().Before(end); {
		wait(t, g, 20)
	}
	o.StartNATS()
	cluster.Eventually(t, func() bool { return o.Admin.Count(`select count(*) from message_live`) <= 2 }, "the relay catches up")
	require.NoError(t, o.NATS.Stop())
	wait(t, g, 20)
	g.Stop() // so that no later call wakes anybody
	waiting := o.Admin.Count(`select count(*) from message_live`)
	require.NotZero(t, waiting)
	o.StartNATS()
	back := time.Now()
	sent, _, _ := l.Messages()
	messages := cluster.RequireSentOnce(o, sent)
	t.Logf("%d messages, %d of them waiting when NATS came back, sent %v later", sent, waiting, time.Since(back).Round(time.Millisecond))
	for kind, o := range g.Outcomes() {
		require.Empty(t, o.Failures, kind)
	}
	enterReceived(t, l, messages)
	require.NoError(t, l.CheckReceivedOnce())
	require.Empty(t, l.Overtaken(), "each sender's messages are in their order")
	require.NoError(t, l.CheckTasks(t.Context(), o.Admin.Owner))
}

func TestTwoOfEachProcessDoubleNothing(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	const n = 600 // more than one takes in a batch
	var clients [2]*api.Client
	for i := range clients {
		clients[i] = api.NewClient(o.Start(""), "admin", "secret")
	}
	zombies := make([]api.SendRequest, n)
	for i := range zombies {
		zombies[i] = api.SendRequest{PhoneNumber: "13800138000", Content: "hi"}
	}
	cluster.InsertWaiting(o.Admin, n)
	for batch := range slices.Chunk(zombies, 1000) {
		_, err := clients[0].SendBatch(t.Context(), batch)
		require.NoError(t, err)
	}
	tasks, err := cluster.ClaimAll(clients[0])
	require.NoError(t, err)
	require.Len(t, tasks, n)
	o.Admin.Exec(`update task_live set due_at = now() - interval '1 minute'`)

	var all sync.WaitGroup
	replies := make(chan cluster.Reply, 100)
	for _, client := range clients {
		o.StartTrigger(client.BaseURL)
		for range 3 { // the triggers alone have one of each work at a time
			all.Go(func() { replies <- o.At(client.BaseURL).Tick("relay") })
			all.Go(func() { replies <- o.At(client.BaseURL).Tick("sweep") })
		}
	}
	all.Wait()
	close(replies)
	for r := range replies {
		require.Equal(t, 204, r.Status, r.Text)
	}
	cluster.RequireSentOnce(o, n)
	cluster.Eventually(t, func() bool { return o.Admin.Count(`select count(*) from task_live where state = 1`) == n })
	require.Equal(t, n, o.Admin.Count(`select count(*) from task_live where retry_count = 1`))
	require.Equal(t, n, o.Admin.Count(`select count(*) from report_logs where verdict = 'timeout_retry'`), "recovered once each")

	var claimed [2][]string
	var errs [2]error
	for i, client := range clients {
		all.Go(func() { claimed[i], errs[i] = cluster.ClaimAll(client) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	cluster.RequireSame(t, tasks, slices.Concat(claimed[:]...), "claimed once each")
}

// statements counts what is executed through a proxy.
type statements struct {
	mu     sync.Mutex
	all    int
	pauses int // reads of a queue's pause: the last statement of a claim before it waits
}

func watch(p *sandbox.Proxy) *statements {
	s := &statements{}
	p.LoseResponse(func(sql string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all++
		if strings.HasSuffix(sql, "from queue_pauses where queue = $1") {
			s.pauses++
		}
		return false // it only counts
	})
	return s
}

func (s *statements) count() (all, pauses int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all, s.pauses
}

func TestManyPollsWaitWithoutDatabase(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	proxy := sandbox.NewProxy(t, o.DatabaseURL)
	asked := watch(proxy)
	claim := api.NewClient(o.Start("claim", "DATABASE_URL="+proxy.URL(), "SENDONCE_CALLER_SHARE=1"), "admin", "secret")
	submit := api.NewClient(o.Start("submit"), "admin", "secret")

	const polls, rounds = 200, 5
	type result struct {
		tasks []api.ClaimedTask
		err   error
	}
	results := make(chan result, polls)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for range polls {
		go func() {
			wait := 30
			tasks, err := claim.Claim(ctx, api.ClaimRequest{AppID: "app", Wait: &wait})
			results <- result{tasks, err}
		}()
	}
	cluster.Eventually(t, func() bool {
		_, pauses := asked.count()
		return pauses >= polls && time.Since(o.Admin.LastStatement()) > time.Second
	}, "all have claimed once, and one perhaps again when the process subscribed to wake-ups")
	_, err := submit.Send(t.Context(), api.SendRequest{PhoneNumber: "13800138000", Content: "for nobody who waits", Queue: "other", IdempotencyKey: api.NewKey()})
	require.NoError(t, err)
	before, _ := asked.count()
	cluster.Eventually(t, func() bool { return time.Since(o.Admin.LastStatement()) > 3*time.Second }, "quiet")
	after, waited := asked.count()
	require.Equal(t, before, after, "nothing was asked")
	require.LessOrEqual(t, waited, polls+1)
	require.Empty(t, results)

	took := make([]time.Duration, 0, rounds)
	apart := time.NewTicker(50 * time.Millisecond) // wake-ups within 20 ms are published together
	defer apart.Stop()
	for range rounds {
		<-apart.C
		start := time.Now()
		sent, err := submit.Send(t.Context(), api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: api.NewKey()})
		require.NoError(t, err)
		got := <-results
		took = append(took, time.Since(start))
		require.NoError(t, got.err)
		require.Len(t, got.tasks, 1)
		require.Equal(t, sent.TaskID, got.tasks[0].TaskID)
		_, pauses := asked.count()
		require.Equal(t, waited, pauses, "the others were not woken")
	}
	slices.Sort(took)
	t.Logf("submit to claimed with %d polls waiting: median %v, worst %v", polls, took[rounds/2], took[rounds-1])
	leave()
	for range polls - rounds {
		require.ErrorIs(t, (<-results).err, context.Canceled, "the others waited on")
	}
}
