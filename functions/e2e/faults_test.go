package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// outage is how long a fault lasts: short enough for every run of the tests, or
// as many seconds as SENDONCE_FAULT_SECONDS says.
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

// load is callers that continue through failures, and what they were answered.
type load struct {
	t    *testing.T
	ctx  context.Context // of the load, not of a call
	stop context.CancelFunc
	all  sync.WaitGroup

	mu       sync.Mutex
	calls    map[string]int // answered, by what was called
	failed   []error
	accepted []string // tasks
	claimed  []string
	saved    int // messages
}

// startLoad has submits, claims and messages made all the time, each by processes of
// their own. Nothing is tried twice.
func startLoad(o *cluster.Cluster) *load {
	l := &load{t: o.T, calls: map[string]int{}}
	l.ctx, l.stop = context.WithCancel(o.T.Context())
	submit, claim := api.NewClient(o.Start("submit"), "admin", "secret"), api.NewClient(o.Start("claim"), "admin", "secret")
	messages := api.NewClient(o.Client.BaseURL, "admin", "secret")
	submit.Tries, claim.Tries, messages.Tries = 1, 1, 1
	ctx := context.WithoutCancel(o.T.Context())
	for range 2 {
		l.keep("submit", func() error {
			sent, err := submit.Send(ctx, api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: api.NewKey()})
			return l.note(err, func() { l.accepted = append(l.accepted, sent.TaskID) })
		})
		l.keep("message", func() error {
			req := api.MessageRequest{ClientMsgID: api.NewKey(), To: "msg.orders.paid", Data: []byte(`{"order":4711}`)}
			cluster.WithoutConfirm(&req)
			_, err := messages.SubmitMessage(ctx, req)
			return l.note(err, func() { l.saved++ })
		})
	}
	l.keep("claim", func() error {
		wait := 1
		tasks, err := claim.Claim(ctx, api.ClaimRequest{AppID: "app", Wait: &wait})
		return l.note(err, func() {
			for _, task := range tasks {
				l.claimed = append(l.claimed, task.TaskID)
			}
		})
	})
	return l
}

// keep makes a call every 10 ms until the end.
func (l *load) keep(name string, call func() error) {
	l.all.Go(func() {
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-pace.C:
			case <-l.ctx.Done():
				return
			}
			err := call()
			l.mu.Lock()
			l.calls[name]++
			if err != nil {
				l.failed = append(l.failed, fmt.Errorf("%s: %w", name, err))
			}
			l.mu.Unlock()
		}
	})
}

func (l *load) note(err error, done func()) error {
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		done()
	}
	return err
}

// lasts returns after d, once each kind of call was answered 20 times in it.
func (l *load) lasts(d time.Duration) {
	l.t.Helper()
	answered := func() map[string]int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.Clone(l.calls)
	}
	began, before := time.Now(), answered()
	require.Eventually(l.t, func() bool {
		now := answered()
		return time.Since(began) >= d && min(now["submit"]-before["submit"], now["message"]-before["message"], now["claim"]-before["claim"]) >= 20
	}, d+cluster.WaitLimit, 5*time.Millisecond)
}

// end stops the calls; none must have failed.
func (l *load) end() {
	l.t.Helper()
	l.stop()
	l.all.Wait()
	require.Empty(l.t, l.failed)
}

// With the default safety tick, a quarter of an hour, nothing but the trigger's
// own look after the outage can bring what was saved in it.
func TestMessagesSavedWithoutNATSAreSentOnce(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartRelay()
	l := startLoad(o)
	l.lasts(0)
	require.NoError(t, o.NATS.Stop())
	l.lasts(outage(t))
	o.StartNATS()
	l.lasts(time.Second)
	require.NoError(t, o.NATS.Stop())
	l.lasts(0)
	l.end() // so that no later call wakes anybody
	waiting := o.Admin.Count(`select count(*) from message_live`)
	require.NotZero(t, waiting)
	o.StartNATS()
	back := time.Now()
	requireSentOnce(o, l.saved)
	t.Logf("%d messages, %d of them waiting when NATS came back for good, sent %v later", l.saved, waiting, time.Since(back).Round(time.Millisecond))

	rest, err := cluster.ClaimAll(api.NewClient(o.Start("claim"), "admin", "secret"))
	require.NoError(t, err)
	cluster.RequireSame(t, l.accepted, append(l.claimed, rest...), "each accepted task was claimed once")
}

func TestRedriveServesReceiverAfterExhaustedSends(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	o.StartRelay()
	id := o.Save("msg.orders.paid")
	for left := o.Message(id).MaxSends - 1; left > 0; left-- {
		cluster.Eventually(t, func() bool { return o.Message(id).RemainingSends <= left }, left)
		o.Admin.Exec(`update message_live set next_at = now() where remaining_sends > 0`)
		_, err := o.JetStream().Publish(t.Context(), "wake.relay", []byte("1"))
		require.NoError(t, err)
	}
	stuck := func() []any {
		return o.At(o.Client.BaseURL).Get("/api/v1/messages/stuck?kind=sent").Data("items").([]any)
	}
	cluster.Eventually(t, func() bool { return len(stuck()) == 1 })
	require.Equal(t, id, stuck()[0].(map[string]any)["server_msg_id"])
	require.Equal(t, "sent", o.Message(id).State)
	require.Empty(t, o.At(o.Client.BaseURL).Get("/api/v1/messages/stuck?kind=sending").Data("items"))
	storedMessages(o, 5)

	points, effects := newPointsService(o)
	consume(o, points, jetstream.DeliverNewPolicy)
	require.Equal(t, 200, o.At(o.Client.BaseURL).Post("/api/v1/messages/"+id+"/redrive", "").Status)
	received := o.WaitMessage(id, "received")
	require.Equal(t, 2, received.Epoch)
	require.Equal(t, "points", received.FinishedBy)
	require.Empty(t, stuck())
	require.Regexp(t, id+`\.[0-9a-f]{8}\.2\.1$`, storedMessages(o, 6)[5].Header.Get("Nats-Msg-Id"), "a redrive has names that no stream has seen")

	again := consume(o, points, jetstream.DeliverAllPolicy)
	cluster.Eventually(t, func() bool {
		info, err := again.Info(t.Context())
		return err == nil && info.AckFloor.Stream == 6
	}, "the sends that it slept through are taken too")
	require.Equal(t, 1, effects())
	require.Equal(t, received, o.Message(id))
}

func TestMessagesForFullStreamUseNoSend(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	const n = 30
	limits := jetstream.StreamConfig{
		Name: "MESSAGES", Subjects: []string{"msg.>"}, Discard: jetstream.DiscardNew, MaxMsgs: 10, Duplicates: time.Minute,
	}
	_, err := o.JetStream().CreateStream(t.Context(), limits)
	require.NoError(t, err)
	for range n {
		o.Save("msg.orders.paid", cluster.WithoutConfirm)
	}
	o.StartRelay()
	const full = `select count(*) from stream_pauses where stream = 'MESSAGES' and reason like '%no room%'`
	fits := func() int { return o.Admin.Count(`select count(*) from message_done`) }
	cluster.Eventually(t, func() bool { return o.Admin.Count(full) > 0 })
	before := fits()
	require.NotZero(t, before)
	o.WaitMessage(o.Save("user:bob"), "sent") // other streams go on
	require.Equal(t, before+1, fits())
	require.Equal(t, n-before, o.Admin.Count(`select count(*) from message_live l join messages m using (id)
		where l.status = 0 and l.send_no = 0 and l.remaining_sends = m.max_sends and l.next_at is not null`))

	limits.MaxMsgs = -1
	_, err = o.JetStream().UpdateStream(t.Context(), limits)
	require.NoError(t, err)
	requireSentOnce(o, n)
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
		o.Save("msg.orders.paid", cluster.WithoutConfirm)
	}
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
	for _, hand := range clients {
		o.StartTrigger(hand.BaseURL)
		for range 3 { // the triggers alone have one of each work at a time
			all.Go(func() { replies <- o.At(hand.BaseURL).Tick("relay") })
			all.Go(func() { replies <- o.At(hand.BaseURL).Tick("sweep") })
		}
	}
	all.Wait()
	close(replies)
	for r := range replies {
		require.Equal(t, 204, r.Status, r.Text)
	}
	requireSentOnce(o, n)
	cluster.Eventually(t, func() bool { return o.Admin.Count(`select count(*) from task_live where state = 1`) == n })
	require.Equal(t, n, o.Admin.Count(`select count(*) from task_live where retry_count = 1`))
	require.Equal(t, n, o.Admin.Count(`select count(*) from report_logs where verdict = 'timeout_retry'`), "recovered once each")

	var claimed [2][]string
	var errs [2]error
	for i, hand := range clients {
		all.Go(func() { claimed[i], errs[i] = cluster.ClaimAll(hand) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	cluster.RequireSame(t, tasks, slices.Concat(claimed[:]...), "claimed once each")
}

// statements counts what is executed through a proxy.
type statements struct {
	mu    sync.Mutex
	all   int
	looks int // at the pause of a queue: the last that a claim asks before it waits
}

func watch(p *sandbox.Proxy) *statements {
	s := &statements{}
	p.LoseAnswer(func(sql string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all++
		if strings.HasSuffix(sql, "from queue_pauses where queue = $1") {
			s.looks++
		}
		return false // it only watches
	})
	return s
}

func (s *statements) count() (all, looks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all, s.looks
}

func TestThousandPollsWaitWithoutDatabase(t *testing.T) {
	t.Parallel()
	o := cluster.OpenMessages(t)
	proxy := sandbox.NewProxy(t, o.DatabaseURL)
	asked := watch(proxy)
	claim := api.NewClient(o.Start("claim", "DATABASE_URL="+proxy.URL(), "SENDONCE_CALLER_SHARE=1"), "admin", "secret")
	submit := api.NewClient(o.Start("submit"), "admin", "secret")

	const polls, rounds = 1000, 5
	type answer struct {
		tasks []api.ClaimedTask
		err   error
	}
	answers := make(chan answer, polls)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for range polls {
		go func() {
			wait := 30
			tasks, err := claim.Claim(ctx, api.ClaimRequest{AppID: "app", Wait: &wait})
			answers <- answer{tasks, err}
		}()
	}
	cluster.Eventually(t, func() bool {
		_, looks := asked.count()
		return looks >= polls && time.Since(o.Admin.LastStatement()) > time.Second
	}, "all have claimed once, and one perhaps again when the process subscribed to wake-ups")
	_, err := submit.Send(t.Context(), api.SendRequest{PhoneNumber: "13800138000", Content: "for nobody who waits", Queue: "other", IdempotencyKey: api.NewKey()})
	require.NoError(t, err)
	before, _ := asked.count()
	cluster.Eventually(t, func() bool { return time.Since(o.Admin.LastStatement()) > 3*time.Second }, "quiet")
	after, looked := asked.count()
	require.Equal(t, before, after, "nothing was asked")
	require.LessOrEqual(t, looked, polls+1)
	require.Empty(t, answers)

	took := make([]time.Duration, 0, rounds)
	apart := time.NewTicker(50 * time.Millisecond) // wake-ups within 20 ms are published together
	defer apart.Stop()
	for range rounds {
		<-apart.C
		start := time.Now()
		sent, err := submit.Send(t.Context(), api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: api.NewKey()})
		require.NoError(t, err)
		got := <-answers
		took = append(took, time.Since(start))
		require.NoError(t, got.err)
		require.Len(t, got.tasks, 1)
		require.Equal(t, sent.TaskID, got.tasks[0].TaskID)
		_, looks := asked.count()
		require.Equal(t, looked, looks, "the others were not woken")
	}
	slices.Sort(took)
	t.Logf("submit to claimed with %d polls waiting: median %v, worst %v", polls, took[rounds/2], took[rounds-1])
	leave()
	for range polls - rounds {
		require.ErrorIs(t, (<-answers).err, context.Canceled, "the others waited on")
	}
}
