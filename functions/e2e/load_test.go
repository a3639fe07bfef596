package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/inbox"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// clientsOf returns a func that makes a client of a function of the service. The client does not retry calls.
func clientsOf(c *cluster.Cluster, function string) func() *api.Client {
	return func() *api.Client {
		client := c.API(function)
		client.Tries = 1
		return client
	}
}

// submitCall submits tasks. It repeats each submission with the same key until the submission succeeds.
func submitCall(client func() *api.Client, l *load.Ledger) load.Call {
	key := api.NewKey()
	return func(ctx context.Context) error {
		sent, err := client().Send(ctx, api.SendRequest{PhoneNumber: "13800138000", Content: "hi", IdempotencyKey: key})
		if err != nil {
			return err
		}
		submitted := key
		key = api.NewKey()
		return l.Submitted(submitted, sent.TaskID)
	}
}

// claimCall claims two tasks at a time and reports one of them. The other task stays claimed.
func claimCall(c *cluster.Cluster, l *load.Ledger) load.Call {
	claim, report := clientsOf(c, "claim"), clientsOf(c, "report")
	limit, wait, succeeded := 2, 1, 2
	var claimed []api.ClaimedTask // if not empty, the next call reports the first
	return func(ctx context.Context) error {
		if len(claimed) > 0 {
			done := claimed[0]
			_, err := report().Report(ctx, api.ReportRequest{TaskID: done.TaskID, AppID: "app", ClaimID: done.ClaimID, Status: &succeeded})
			if err == nil {
				l.Reported(done.TaskID)
				claimed = nil
			}
			return err
		}
		tasks, err := claim().Claim(ctx, api.ClaimRequest{AppID: "app", Limit: &limit, Wait: &wait})
		for _, task := range tasks {
			l.Claimed(task.TaskID, task.ClaimID.String())
		}
		claimed = tasks
		return err
	}
}

// messageCall submits the messages of a sender in order. It repeats each message until the message is acknowledged.
func messageCall(client func() *api.Client, l *load.Ledger, sender, to, ack string, change ...func(*api.MessageRequest)) load.Call {
	n := 1
	return func(ctx context.Context) error {
		m := load.Message{Sender: sender, N: n}
		data, err := json.Marshal(m)
		if err != nil {
			return err
		}
		req := api.MessageRequest{From: sender, ClientMsgID: strconv.Itoa(n), To: to, Data: data, Ack: ack}
		for _, f := range change {
			f(&req)
		}
		acknowledged, err := client().SubmitMessage(ctx, req)
		if err != nil {
			return err
		}
		kind := acknowledged.Ack
		if acknowledged.Ordering != "" {
			kind = acknowledged.Ordering
		}
		l.Sent(m, load.Sent{ID: acknowledged.ServerMsgID, Ack: kind})
		n++
		return nil
	}
}

// waitSucceeded waits until n more calls of each of the kinds have succeeded. Without kinds it waits for every kind.
func waitSucceeded(t *testing.T, g *load.Generator, n int, kinds ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.WaitLimit)
	defer cancel()
	require.NoError(t, g.WaitSucceeded(ctx, n, kinds...))
}

// requireRefusals requires that every failed call was refused with 503 and Retry-After, and returns the number of
// failed calls.
func requireRefusals(t *testing.T, g *load.Generator) (refused int) {
	t.Helper()
	for kind, o := range g.Outcomes() {
		for _, err := range o.Failures {
			var refusal *api.Error
			require.ErrorAs(t, err, &refusal, kind)
			require.Equal(t, 503, refusal.Status, kind)
			require.NotZero(t, refusal.RetryAfter, kind)
			refused++
		}
	}
	return refused
}

// recordReceived records the messages of a stream, oldest first, as received.
func recordReceived(t *testing.T, l *load.Ledger, messages []*jetstream.RawStreamMsg) {
	t.Helper()
	for _, m := range messages {
		var received load.Message
		require.NoError(t, json.Unmarshal(m.Data, &received))
		l.Received(received)
	}
}

// acceptLoad has senders that submit messages to bob with ack accepted, and a ledger of the responses.
type acceptLoad struct {
	*load.Generator
	*load.Ledger
	c *cluster.Cluster
}

func startAcceptLoad(c *cluster.Cluster, senders int) *acceptLoad {
	l := &acceptLoad{load.New(c.T.Context()), load.NewLedger(), c}
	c.T.Cleanup(l.Stop)
	for n := range senders {
		l.Start("submit", 10*time.Millisecond, messageCall(clientsOf(c, "messages"), l.Ledger, fmt.Sprint("sender-", n), "user:bob", "accepted"))
	}
	return l
}

// waitAcknowledged waits until n more messages were acknowledged with ack: "accepted", "saved", or "best-effort", which
// is a message that was saved because it could not be accepted.
func (l *acceptLoad) waitAcknowledged(n int, ack string) {
	l.c.T.Helper()
	want := l.Acknowledged(ack) + n
	cluster.Eventually(l.c.T, func() bool { return l.Acknowledged(ack) >= want }, ack)
}

// finish ends the load. It requires that exactly the acknowledged messages are saved, and that bob's inbox has each of
// them once. It returns how many accepted messages are in the inbox behind a later accepted message of the same sender.
func (l *acceptLoad) finish() (overtaken int) {
	t, c := l.c.T, l.c
	t.Helper()
	l.Stop()
	sent, _, _ := l.Messages()
	cluster.Eventually(t, func() bool {
		return c.SavedMessages() >= sent && c.Admin.Count(`select count(*) from message_live`) == 0
	}, "all are saved and sent")
	require.NoError(t, l.CheckMessages(t.Context(), c.Admin.Owner))
	require.Zero(t, c.Admin.Count(`select count(*) from messages a join messages b on a.sender = b.sender
		and a.accept_seq < b.accept_seq and a.client_msg_id::integer > b.client_msg_id::integer`), "a sender's messages are accepted in their order")
	rows, err := c.Admin.Owner.Query(t.Context(), `select id::text from messages where accept_seq is not null`)
	require.NoError(t, err)
	accepted, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	isAccepted := map[string]bool{}
	for _, id := range accepted {
		isAccepted[id] = true
	}
	inbox, ordered := c.Inbox("bob"), load.NewLedger()
	recordReceived(t, l.Ledger, inbox)
	require.NoError(t, l.CheckReceivedOnce())
	for _, m := range inbox {
		if isAccepted[m.Header.Get("ce-id")] {
			recordReceived(t, ordered, []*jetstream.RawStreamMsg{m})
		}
	}
	overtaken = sum(ordered.Overtaken())
	t.Logf("%d accepted, %d best-effort, %d saved; %d calls failed, slowest response %v; %d accepted messages overtaken", l.Acknowledged("accepted"),
		l.Acknowledged("best-effort"), l.Acknowledged("saved"), len(l.Outcomes()["submit"].Failures), l.Outcomes()["submit"].Slowest().Round(time.Millisecond), overtaken)
	return overtaken
}

// twoPhaseAt starts a trigger, and all functions with TWO_PHASE_ENABLED. They use the NATS server at a URL.
func twoPhaseAt(t *testing.T, url string, env ...string) *cluster.Cluster {
	t.Helper()
	c := cluster.NewAt(t, sandbox.NewDatabase(t), url, append([]string{"SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true"}, env...)...)
	c.StartAll()
	js := c.JetStream()
	cluster.Eventually(t, func() bool {
		_, err := js.Consumer(t.Context(), "ACCEPTED", "save-1-of-1")
		return err == nil
	}, "the trigger has made all streams and consumers")
	return c
}

// callLoad makes calls of all kinds to a cluster in which each function has a process of its own. It has a ledger of
// the responses.
type callLoad struct {
	*load.Generator
	*load.Ledger
	c *cluster.Cluster
}

func startCallLoad(c *cluster.Cluster) *callLoad {
	c.T.Helper()
	l := &callLoad{load.New(context.WithoutCancel(c.T.Context())), load.NewLedger(), c}
	receiver, _ := cluster.NewPointsService(c)
	effect := receiver.Effect
	receiver.Effect = func(ctx context.Context, tx pgx.Tx, m inbox.Message) error {
		var received load.Message
		if err := json.Unmarshal(m.Data, &received); err != nil {
			return err
		}
		l.Received(received)
		return effect(ctx, tx, m)
	}
	cluster.Consume(c, receiver, jetstream.DeliverNewPolicy)
	const pace = 20 * time.Millisecond
	for range 4 {
		l.Start("submit", pace, submitCall(clientsOf(c, "submit"), l.Ledger))
	}
	read := clientsOf(c, "submit")
	for n := range 2 {
		l.Start("claim or report", pace, claimCall(c, l.Ledger))
		l.Start("read", pace, func(ctx context.Context) error { // reads one submitted task, which must be found
			for _, id := range l.TaskIDs() {
				_, err := read().Task(ctx, id)
				return err
			}
			return nil
		})
		for _, ack := range []string{"saved", "accepted"} {
			l.Start(ack+" message", pace, messageCall(clientsOf(c, "messages"), l.Ledger, fmt.Sprint(ack, "-", n), "msg.orders.paid", ack))
		}
	}
	c.T.Cleanup(l.Stop)
	return l
}

// waitProgress waits until n more calls of each kind have succeeded and another message was received.
func (l *callLoad) waitProgress(n int) {
	l.c.T.Helper()
	_, before, _ := l.Messages()
	waitSucceeded(l.c.T, l.Generator, n)
	cluster.Eventually(l.c.T, func() bool { _, received, _ := l.Messages(); return received > before }, "messages are received")
}

// finish ends the load, and compares the responses with the database, the received messages and the outcomes that shop
// got.
func (l *callLoad) finish(shop *cluster.Receiver) {
	t, db := l.c.T, l.c.Admin
	t.Helper()
	l.Stop()
	refused := requireRefusals(t, l.Generator)
	requireNoErrors(l.c)
	require.NoError(t, l.CheckTasks(t.Context(), db.Owner))
	require.Zero(t, db.Count(`select count(*) from (select task_id from send_logs group by 1 having count(*) > 1) twice`), "no task is claimed twice: no lease ends during the test")
	require.Zero(t, db.Count(`select count(*) from (select task_id from report_logs where verdict = 'applied' group by 1 having count(*) > 1) twice`))
	sent, _, _ := l.Messages()
	cluster.Eventually(t, func() bool { _, received, _ := l.Messages(); return received >= sent }, "all messages are received")
	require.NoError(t, l.CheckMessages(t.Context(), db.Owner))
	require.NoError(t, l.CheckReceivedOnce())
	require.Empty(t, l.Overtaken(), "no message overtakes an earlier one of its sender")
	submitted, claimed, reported := l.Tasks()
	cluster.Eventually(t, func() bool { return len(subjectsOf(t, shop)) == reported }, "each outcome is delivered")
	t.Logf("%d tasks submitted, %d claimed, %d reported, %d messages; %d calls got 503", submitted, claimed, reported, sent, refused)
}

// subjectsOf returns the ids of the tasks whose events a receiver got.
func subjectsOf(t *testing.T, v *cluster.Receiver) map[string]bool {
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

// requireNoErrors requires that no call got 500, and that the processes logged no ERROR except for calls: a call with 503
// is logged as an ERROR, but is allowed.
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
