package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/inbox"
)

// callLedger is callers of a cluster that continue through failures, and what they were
// answered. Each makes one call after the other, and the same one again until it is
// answered.
type callLedger struct {
	t     *testing.T
	c     *cluster.Cluster
	ctx   context.Context // of the callers, not of a call
	stop  context.CancelFunc
	all   sync.WaitGroup
	calls context.Context

	mu       sync.Mutex
	accepted map[string]bool     // tasks
	newest   string              // of them
	claims   map[string][]api.ID // by task
	reported map[string]bool
	sent     map[string]int    // messages, by sender
	received []numberedMessage // each time the receiver acted

	answered map[string]int // by kind of call
	refused  map[string]int // with 503 and Retry-After
	strange  []error        // every other failure
	slowest  time.Duration  // answer
	since    time.Time
	first    map[string]time.Duration // answer since then
}

// numberedMessage is the data of a message.
type numberedMessage struct {
	Sender string
	N      int
}

// startCallLedger begins the calls.
func startCallLedger(c *cluster.Cluster) *callLedger {
	c.T.Helper()
	l := &callLedger{
		t: c.T, c: c, accepted: map[string]bool{}, claims: map[string][]api.ID{}, reported: map[string]bool{}, sent: map[string]int{},
		answered: map[string]int{}, refused: map[string]int{}, first: map[string]time.Duration{},
	}
	l.ctx, l.stop = context.WithCancel(c.T.Context())
	l.calls = context.WithoutCancel(c.T.Context())
	l.receive()
	for range 4 {
		l.keep("submit", l.submitter())
	}
	for range 2 {
		l.keep("claim or report", l.sender())
		l.keep("read", l.reader())
	}
	for n := range 2 {
		l.keep("saved message", l.author(fmt.Sprint("saved-", n), "saved"))
		l.keep("accepted message", l.author(fmt.Sprint("accepted-", n), "accepted"))
	}
	c.T.Cleanup(l.close)
	return l
}

// of is a function as one who never repeats a call by itself.
func (l *callLedger) of(function string) *api.Client {
	client := l.c.API(function)
	client.Tries = 1
	return client
}

func (l *callLedger) submitter() func() error {
	client, key := l.of("submit"), api.NewKey()
	return func() error {
		sent, err := client.Send(l.calls, api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: key})
		return l.note(err, func() { l.accepted[sent.TaskID], l.newest, key = true, sent.TaskID, api.NewKey() })
	}
}

// sender claims two tasks at a time and reports one; the other stays claimed.
func (l *callLedger) sender() func() error {
	claim, report := l.of("claim"), l.of("report")
	two, wait, succeeded := 2, 1, 2
	var hand []api.ClaimedTask // not reported yet
	return func() error {
		if len(hand) > 0 {
			_, err := report.Report(l.calls, api.ReportRequest{TaskID: hand[0].TaskID, AppID: "app", ClaimID: hand[0].ClaimID, Status: &succeeded})
			return l.note(err, func() { l.reported[hand[0].TaskID], hand = true, nil })
		}
		tasks, err := claim.Claim(l.calls, api.ClaimRequest{AppID: "app", Limit: &two, Wait: &wait})
		return l.note(err, func() {
			for _, task := range tasks {
				l.claims[task.TaskID] = append(l.claims[task.TaskID], task.ClaimID)
			}
			hand = tasks
		})
	}
}

// reader finds what was accepted: never 404.
func (l *callLedger) reader() func() error {
	client := l.of("submit")
	return func() error {
		l.mu.Lock()
		id := l.newest
		l.mu.Unlock()
		if id == "" {
			return nil
		}
		_, err := client.Task(l.calls, id)
		return l.note(err, func() {})
	}
}

func (l *callLedger) author(name, ack string) func() error {
	client, n := l.of("messages"), 0
	return func() error {
		data, err := json.Marshal(numberedMessage{name, n})
		if err != nil {
			return err
		}
		_, err = client.SubmitMessage(l.calls, api.MessageRequest{From: name, ClientMsgID: fmt.Sprint(n), To: "msg.orders.paid", Data: data, Ack: ack})
		return l.note(err, func() { n++; l.sent[name] = n })
	}
}

// receive has a receiver act on each message and confirm it.
func (l *callLedger) receive() {
	receiver, _ := newPointsService(l.c)
	act := receiver.Effect
	receiver.Effect = func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		var e numberedMessage
		if err := json.Unmarshal(m.Data, &e); err != nil {
			return err
		}
		l.mu.Lock()
		l.received = append(l.received, e)
		l.mu.Unlock()
		l.done("receive")
		return act(ctx, tx, m)
	}
	consume(l.c, receiver, jetstream.DeliverNewPolicy)
}

// keep makes a call every 20 ms until the end, and until the last is answered.
func (l *callLedger) keep(kind string, call func() error) {
	l.all.Go(func() {
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		for answered := true; l.ctx.Err() == nil || !answered; {
			select {
			case <-pace.C:
			case <-l.t.Context().Done():
				return
			}
			began := time.Now()
			err := call()
			answered = err == nil
			l.recordAnswer(kind, time.Since(began), err)
		}
	})
}

func (l *callLedger) recordAnswer(kind string, took time.Duration, err error) {
	if err == nil {
		l.done(kind)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	var refusal *api.Error
	switch {
	case err == nil:
	case errors.As(err, &refusal) && refusal.Status == 503 && refusal.RetryAfter > 0:
		l.refused[kind]++
	default:
		l.strange = append(l.strange, fmt.Errorf("%s: %w", kind, err))
	}
}

func (l *callLedger) done(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered[kind]++
	if _, before := l.first[kind]; !before && !l.since.IsZero() {
		l.first[kind] = time.Since(l.since)
	}
}

func (l *callLedger) note(err error, told func()) error {
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		told()
	}
	return err
}

// begins has first answers counted from now on.
func (l *callLedger) begins() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = time.Now()
	clear(l.first)
}

// more waits until so many more calls of each kind were answered.
func (l *callLedger) more(n int) {
	l.t.Helper()
	l.until(l.answered, n, "submit", "claim or report", "read", "saved message", "accepted message", "receive")
}

// refuses waits until one more call of each kind was refused.
func (l *callLedger) refuses(kinds ...string) {
	l.t.Helper()
	l.until(l.refused, 1, kinds...)
}

func (l *callLedger) until(counts map[string]int, n int, kinds ...string) {
	l.t.Helper()
	now := func() map[string]int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.Clone(counts)
	}
	before := now()
	lacking := func() []string {
		now := now()
		return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return now[kind] >= before[kind]+n })
	}
	cluster.Eventually(l.t, func() bool { return len(lacking()) == 0 })
	require.Empty(l.t, lacking())
}

// close ends the calls.
func (l *callLedger) close() {
	l.stop()
	l.all.Wait()
}

// balance demands that the database and the receiver have what callers were answered,
// once, and nothing else.
func (l *callLedger) balance(shop *cluster.Receiver) {
	t, has := l.t, l.c.Admin.Count
	t.Helper()
	l.close()
	require.Empty(t, l.strange, "every refusal is 503 with Retry-After")
	requireNoErrors(l.c)
	for id := range l.accepted {
		require.Equal(t, 1, has(`select count(*) from tasks where id = $1`, id), "accepted %s", id)
	}
	require.Equal(t, len(l.accepted)+1, has(`select count(*) from tasks`), "and nothing else but that of the waiting claim")
	require.Zero(t, has(`select count(*) from (select task_id from send_logs group by 1 having count(*) > 1) twice`), "handed out twice within its lease")
	for id, claims := range l.claims {
		require.Len(t, claims, 1, "%s was handed out twice within its lease", id)
		const held = `select (select count(*) from task_live where id = $1 and state = 2 and claim_id = $2) + (select count(*) from task_done where id = $1)`
		require.Equal(t, 1, has(held, id, claims[0]), "claimed %s", id)
	}
	for id := range l.reported {
		require.Equal(t, 1, has(`select count(*) from task_done where id = $1 and status = 2`, id), "reported %s", id)
	}
	require.Equal(t, len(l.reported), has(`select count(*) from task_done`), "and nothing else")
	require.Zero(t, has(`select count(*) from (select task_id from report_logs where verdict = 'applied' group by 1 having count(*) > 1) twice`))
	l.balanceMessages()
	cluster.Eventually(t, func() bool { return len(subjectsOf(shop, t)) == len(l.reported) }, "each outcome is delivered")
	t.Logf("%d accepted, %d claimed (%d more whose claim was never answered), %d reported, messages %v; 503s %v, slowest answer %v", len(l.accepted), len(l.claims),
		has(`select count(*) from send_logs where app_id = 'app'`)-len(l.claims), len(l.reported), l.sent, l.refused, l.slowest.Round(time.Millisecond))
}

// balanceMessages says that the receiver acted on each message once, and on
// those of one sender in their order.
func (l *callLedger) balanceMessages() {
	t, total := l.t, 0
	t.Helper()
	for _, n := range l.sent {
		total += n
	}
	received := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.received) }
	cluster.Eventually(t, func() bool { return received() >= total }, "%d of %d are received", received(), total)
	published := l.published()
	for sender, n := range l.sent {
		require.Equal(t, upTo(n), numbersOf(l.received, sender), "what %s sent is received once, in its order; published was %v", sender, numbersOf(published, sender))
	}
	require.Equal(t, total, l.c.Admin.Count(`select count(*) from messages where kind = 0 and sender ~ '^(saved|accepted)-'`))
}

// published is what the stream of messages has, oldest first, each once.
func (l *callLedger) published() (first []numberedMessage) {
	stream, err := l.c.JetStream().Stream(l.t.Context(), "MESSAGES")
	require.NoError(l.t, err)
	known := map[numberedMessage]bool{{}: true} // that of who looks whether all is up
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(l.t.Context(), seq)
		require.NoError(l.t, err)
		var e numberedMessage
		require.NoError(l.t, json.Unmarshal(m.Data, &e))
		if !known[e] {
			known[e], first = true, append(first, e)
		}
	}
	return first
}

// numbersOf are the numbers of a sender's messages.
func numbersOf(messages []numberedMessage, sender string) (numbers []int) {
	for _, m := range messages {
		if m.Sender == sender {
			numbers = append(numbers, m.N)
		}
	}
	return numbers
}

func upTo(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return numbers
}

// subjectsOf returns the tasks that v got events of.
func subjectsOf(v *cluster.Receiver, t *testing.T) map[string]bool {
	t.Helper()
	v.Mu.Lock()
	defer v.Mu.Unlock()
	subjects := map[string]bool{}
	for _, body := range v.Bodies {
		var e api.WebhookEvent
		require.NoError(t, json.Unmarshal(body, &e))
		subjects[e.Subject] = true
	}
	return subjects
}

// requireNoErrors says that no function answered 500 or panicked, neither a caller nor
// the trigger.
func requireNoErrors(c *cluster.Cluster) {
	c.T.Helper()
	for name, p := range c.Processes() {
		for line := range strings.Lines(p.Output()) {
			var entry struct {
				Msg, Level string
				Status     int
			}
			if json.Unmarshal([]byte(line), &entry) == nil {
				require.False(c.T, entry.Status == 500 || entry.Level == "ERROR" && entry.Msg != "call", "%s: %s", name, line)
			}
		}
	}
}
