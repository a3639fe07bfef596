package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// ledger is senders that continue through failures, and what they were answered. Each
// submits one message after the other to bob, and the same one again until
// it is acknowledged.
type ledger struct {
	w       *cluster.Cluster
	ctx     context.Context // of the senders
	stop    context.CancelFunc
	senders sync.WaitGroup

	mu      sync.Mutex
	at      string // where the functions are
	acks    map[string][]api.MessageAck
	counts  counts
	failed  []error
	slowest time.Duration // answer

	overtaken int // messages that bob gets after one that their sender sent later; set by holds
}

// counts is how many messages were acknowledged in which way.
type counts struct{ accepted, bestEffort, saved int }

func (c counts) all() int { return c.accepted + c.bestEffort + c.saved }

// startLedger has so many callers send.
func startLedger(w *cluster.Cluster, senders int) *ledger {
	w.T.Helper()
	l := &ledger{w: w, at: w.Client.BaseURL, acks: map[string][]api.MessageAck{}}
	l.ctx, l.stop = context.WithCancel(w.T.Context())
	w.T.Cleanup(l.senders.Wait) // Context has ended by then
	for n := range senders {
		caller := w.Admin.NewCaller(fmt.Sprint("sender-", n), "submitter")
		client := *api.NewClient("", caller.User, caller.Password)
		client.Tries = 1
		l.senders.Go(func() { l.send(client) })
	}
	return l
}

func (l *ledger) send(client api.Client) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for i := 0; l.ctx.Err() == nil; i++ {
		for acknowledged := false; !acknowledged; {
			select {
			case <-pace.C:
			case <-l.w.T.Context().Done():
				return
			}
			client.BaseURL = l.where()
			began := time.Now()
			ack, err := client.SubmitMessage(l.w.T.Context(), api.MessageRequest{
				ClientMsgID: strconv.Itoa(i), To: "user:bob", Data: api.JSON(strconv.Itoa(i)), Ack: "accepted",
			})
			l.note(client.User, ack, err, time.Since(began))
			acknowledged = err == nil
		}
	}
}

func (l *ledger) where() string { l.mu.Lock(); defer l.mu.Unlock(); return l.at }

func (l *ledger) note(sender string, ack api.MessageAck, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	switch {
	case err != nil:
		l.failed = append(l.failed, err)
		return
	case ack.Ack == "accepted":
		l.counts.accepted++
	case ack.Ordering == "best-effort":
		l.counts.bestEffort++
	default:
		l.counts.saved++
	}
	l.acks[sender] = append(l.acks[sender], ack)
}

func (l *ledger) sum() counts { l.mu.Lock(); defer l.mu.Unlock(); return l.counts }

// move has the senders go to where the functions are now.
func (l *ledger) move() { l.mu.Lock(); defer l.mu.Unlock(); l.at = l.w.Client.BaseURL }

// more waits until n more answers of a kind came.
func (l *ledger) more(n int, of func(counts) int) {
	l.w.T.Helper()
	want := of(l.sum()) + n
	cluster.Eventually(l.w.T, func() bool { return of(l.sum()) >= want })
}

// refused waits until n calls have failed.
func (l *ledger) refused(n int) {
	l.w.T.Helper()
	failed := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.failed) }
	cluster.Eventually(l.w.T, func() bool { return failed() >= n })
}

func accepted(c counts) int    { return c.accepted }
func bestEffort(c counts) int  { return c.bestEffort }
func savedAtOnce(c counts) int { return c.saved }

// holds ends the senders, and demands that what they were answered is what is saved
// and what bob gets: everything once, and in the stream in the order in which it
// was sent if the answer did not say otherwise.
func (l *ledger) holds(js jetstream.JetStream) {
	t := l.w.T
	t.Helper()
	l.stop()
	l.senders.Wait()
	total, ended := l.counts.all(), time.Now()
	cluster.Eventually(t, func() bool {
		return l.w.SavedMessages() >= total && l.w.Admin.Count(`select count(*) from message_live`) == 0
	}, "all are saved and sent")
	require.Equal(t, total, l.w.SavedMessages(), "and nothing else")
	took := time.Since(ended)

	rows, places := l.rows(), inboxPlaces(t, js, total)
	for sender, acks := range l.acks {
		var seq int64
		var place int
		for i, ack := range acks {
			r, saved := rows[ack.ServerMsgID]
			require.True(t, saved, "%s %d: %+v", sender, i, ack)
			require.Equal(t, row{ack.ServerMsgID, sender, strconv.Itoa(i), r.Seq}, r)
			require.NotZero(t, places[ack.ServerMsgID], "bob has %s %d", sender, i)
			if ack.Ack != "accepted" {
				continue
			}
			require.Greater(t, ack.AcceptSeq, seq, "%s %d", sender, i)
			require.Contains(t, []int64{ack.AcceptSeq, 0}, r.Seq, "%s %d", sender, i) // 0: an earlier call had it saved
			if places[ack.ServerMsgID] < place {
				l.overtaken++
			}
			seq, place = ack.AcceptSeq, max(place, places[ack.ServerMsgID])
		}
	}
	t.Logf("%+v, %d calls failed, slowest answer %v; all sent %v after the last, %d to bob later than one behind them", l.counts, len(l.failed),
		l.slowest.Round(time.Millisecond), took.Round(time.Millisecond), l.overtaken)
}

// row is a saved message.
type row struct {
	ID, Sender, Key string
	Seq             int64 // 0 = it was saved at once
}

func (l *ledger) rows() map[string]row {
	found, err := l.w.Admin.Owner.Query(context.Background(), `select id::text, sender, client_msg_id, coalesce(accept_seq, 0) from messages`)
	require.NoError(l.w.T, err)
	all, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	require.NoError(l.w.T, err)
	rows := map[string]row{}
	for _, r := range all {
		rows[r.ID] = r
	}
	return rows
}

// inboxPlaces returns the place of each of n messages in bob's inbox; none is there twice.
func inboxPlaces(t *testing.T, js jetstream.JetStream, n int) map[string]int {
	t.Helper()
	consumer, err := js.OrderedConsumer(t.Context(), "USERS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"inbox.bob"}})
	require.NoError(t, err)
	all, err := consumer.Messages()
	require.NoError(t, err)
	defer all.Stop()
	places, count := map[string]int{}, 0
	for more := n > 0; more; {
		m, err := all.Next(jetstream.NextMaxWait(cluster.WaitLimit))
		require.NoError(t, err)
		count++
		places[m.Headers().Get("ce-id")] = count
		meta, err := m.Metadata()
		require.NoError(t, err)
		more = meta.NumPending > 0
	}
	require.Len(t, places, n)
	require.Equal(t, n, count, "none is there twice")
	return places
}

func jetStreamAt(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// twoPhaseAt opens a cluster with a trigger that accepts at the NATS of url.
func twoPhaseAt(t *testing.T, url string, more ...string) (*cluster.Cluster, jetstream.JetStream) {
	t.Helper()
	w := cluster.NewAt(t, sandbox.NewDatabase(t), url, append([]string{"SENDONCE_SAFETY_TICK=1s", "TWO_PHASE_ENABLED=true"}, more...)...)
	w.StartAll()
	js := jetStreamAt(t, url)
	cluster.Eventually(t, func() bool {
		_, err := js.Consumer(t.Context(), "ACCEPTED", "save-1-of-1")
		return err == nil
	}, "the trigger has made all")
	return w, js
}
