package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestKilledNATSLosesNoAcceptedMessage(t *testing.T) {
	t.Parallel()
	cluster.OnlyWithFaults(t)
	server := sandbox.NewNATSServer(t)
	w, js := twoPhaseAt(t, server.URL())
	l := startLedger(w, 8)
	for range 2 {
		l.more(200, accepted)
		server.Kill()
		l.more(50, bestEffort)
		server.Start()
	}
	l.more(200, accepted)
	l.holds(js)
	require.Empty(t, l.failed, "none was kept from handing over")
	require.Zero(t, l.counts.saved, "every answer says that it was accepted")
}

func TestMessagesAreAcceptedWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	proxy := sandbox.NewProxy(t, w.DatabaseURL)
	w.Env = append(w.Env, "DATABASE_URL="+proxy.URL())
	w.Restart()
	w.StartTrigger(w.Client.BaseURL)
	l := startLedger(w, 4)
	l.more(100, accepted)
	proxy.Cut()
	for began := time.Now(); time.Since(began) < outage(t); {
		l.more(20, accepted)
	}
	away := w.SavedMessages()
	l.more(20, accepted)
	require.Equal(t, away, w.SavedMessages(), "Postgres is away")
	proxy.Restore()
	l.more(20, accepted)
	l.holds(w.JetStream())
	require.Zero(t, l.overtaken)
	require.Empty(t, l.failed)
	require.Equal(t, l.counts.accepted, l.counts.all())
}

// limitAccepted is how many messages the stream of accepted messages may have. A trigger
// sets its bytes as the settings say.
func limitAccepted(w *cluster.Cluster, messages int64) {
	w.T.Helper()
	js := w.JetStream()
	s, err := js.Stream(w.T.Context(), "ACCEPTED")
	require.NoError(w.T, err)
	config := s.CachedInfo().Config
	config.MaxMsgs = messages
	_, err = js.UpdateStream(w.T.Context(), config)
	require.NoError(w.T, err)
}

func TestWithFullStreamMessagesAreSavedOrRefused(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprint("fail open ", open), func(t *testing.T) {
			t.Parallel()
			w := cluster.OpenTwoPhase(t, fmt.Sprint("TWO_PHASE_FAIL_OPEN=", open))
			limitAccepted(w, 80)
			w.StartTrigger(w.Client.BaseURL)
			l := startLedger(w, 4)
			if open {
				l.more(50, bestEffort)
			} else {
				l.refused(20)
			}
			require.NotZero(t, l.sum().accepted, "while there was room")
			limitAccepted(w, -1)
			l.more(50, accepted)
			l.holds(w.JetStream())
			require.Zero(t, l.overtaken)
			require.Zero(t, l.counts.saved)
			if open {
				require.Empty(t, l.failed)
				return
			}
			require.Zero(t, l.counts.bestEffort)
			for _, err := range l.failed {
				var refusal *api.Error
				require.ErrorAs(t, err, &refusal)
				require.Equal(t, 503, refusal.Status)
				require.NotZero(t, refusal.RetryAfter)
			}
		})
	}
}

func TestSwitchingTwoPhaseOffAndOnLosesNothing(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t)
	l := startLedger(w, 4)
	l.more(200, accepted) // without a trigger none of them is saved
	restartWith(w, "TWO_PHASE_ENABLED=false", l)
	l.more(50, savedAtOnce)
	before := l.sum().accepted
	trigger := cluster.StartProcess(t, w.Bin, append(append([]string{}, w.Env...), "SENDONCE_FUNCTIONS_URL="+w.Client.BaseURL), "trigger")
	js := w.JetStream()
	cluster.Eventually(t, func() bool {
		_, err := js.Consumer(t.Context(), "ACCEPTED", "save-1-of-1")
		return err == nil
	})
	text, err := runDrain(w)
	require.NoError(t, err, text)
	require.Contains(t, text, "0 accepted messages are not saved")
	require.GreaterOrEqual(t, w.Admin.Count(`select count(*) from accepted_messages`), before, "all that was accepted is saved")
	l.more(50, savedAtOnce)
	require.Equal(t, before, l.sum().accepted, "it is off")
	_, err = trigger.Terminate(cluster.WaitLimit)
	require.NoError(t, err)
	restartWith(w, "TWO_PHASE_ENABLED=true", l)
	w.StartTrigger(w.Client.BaseURL)
	l.more(100, accepted)
	l.holds(js)
	require.Zero(t, l.overtaken)
	require.Zero(t, l.counts.bestEffort)
}

// runDrain runs the command and returns what it prints.
func runDrain(w *cluster.Cluster) (text string, err error) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), cluster.WaitLimit)
	defer cancel()
	drain := exec.CommandContext(ctx, w.Bin, "drain")
	drain.Env, drain.WaitDelay = cluster.AsComponent(w.T, w.Env, "drain"), time.Second
	out, err := drain.CombinedOutput()
	return string(out), err
}

// restartWith replaces the process by one with another setting, under the load of l.
func restartWith(w *cluster.Cluster, setting string, l *ledger) {
	w.T.Helper()
	old := w.Process(cluster.All)
	w.Env = append(w.Env, setting)
	w.Restart()
	l.move()
	_, err := old.Terminate(cluster.WaitLimit)
	require.NoError(w.T, err)
}

// valve stands between a process and NATS and can hold back what NATS says.
type valve struct {
	url string
	out sync.RWMutex // write-locked while shut
}

func newValve(t *testing.T, server *sandbox.NATS) *valve {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	through, err := url.Parse(server.URL())
	require.NoError(t, err)
	through.Host = listener.Addr().String()
	v := &valve{url: through.String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			server, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(server.Port()))
			if err != nil {
				client.Close()
				continue
			}
			go func() { defer server.Close(); _, _ = io.Copy(server, client) }() // ends with either side
			go func() { defer client.Close(); v.say(client, server) }()
		}
	}()
	return v
}

func (v *valve) say(client io.Writer, server io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		v.out.RLock()
		_, err = client.Write(buffer[:n])
		v.out.RUnlock()
		if err != nil {
			return
		}
	}
}

func TestRepeatAfterCrashBeforeAnswerIsTheSameMessage(t *testing.T) {
	t.Parallel()
	cluster.OnlyWithFaults(t)
	w := cluster.OpenTwoPhase(t)
	direct, v := w.Env, newValve(t, w.NATS)
	w.Env = append(append([]string{}, direct...), "NATS_URL="+v.url)
	w.Restart()
	require.Equal(t, "accepted", w.Accept("before", `0`).Ack)
	stream, err := w.JetStream().Stream(t.Context(), "ACCEPTED")
	require.NoError(t, err)

	v.out.Lock()
	defer v.out.Unlock()
	client := *w.Client
	client.Tries = 1
	answer := make(chan error, 1)
	request := api.MessageRequest{ClientMsgID: "once", To: "user:bob", Data: api.JSON(`1`), Ack: "accepted"}
	go func() {
		_, err := client.SubmitMessage(t.Context(), request)
		answer <- err
	}()
	cluster.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	}, "the stream has it")
	require.NoError(t, w.Process(cluster.All).Kill())
	require.Error(t, <-answer)

	w.Env = direct
	w.Restart()
	again := w.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"once","to":"user:bob","data":1,"ack":"accepted"}`)
	require.Equal(t, 202, again.Status, again.Text)
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	require.EqualValues(t, 2, again.Data("accept_seq"))
	w.StartTrigger(w.Client.BaseURL)
	id := again.Data("server_msg_id").(string)
	cluster.Eventually(t, func() bool { return w.Message(id).State == "sent" }, "committed after bob has it")
	require.Len(t, w.Inbox("bob"), 2)
	require.Equal(t, 2, w.SavedMessages())
}

func TestDeliveryBeforeSavedHappensOnceWithoutPostgres(t *testing.T) {
	t.Parallel()
	w := cluster.OpenTwoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	proxy := sandbox.NewProxy(t, w.DatabaseURL)
	w.Env = append(w.Env, "DATABASE_URL="+proxy.URL())
	w.Restart()
	w.StartTrigger(w.Client.BaseURL)
	l := startLedger(w, 4)
	l.more(20, accepted)
	proxy.Cut()
	acknowledged := l.sum().all()
	l.more(40, accepted)
	js := w.JetStream()
	cluster.Eventually(t, func() bool { return inboxHas(t, js) >= acknowledged+40 }, "bob has them")
	require.Less(t, w.SavedMessages(), acknowledged+40, "and they are not saved")
	proxy.Restore()
	l.more(20, accepted)
	l.holds(js)
	require.Zero(t, l.overtaken)
	require.Equal(t, l.counts.accepted, l.counts.all())
}

// inboxHas is how many messages are in bob's inbox.
func inboxHas(t *testing.T, js jetstream.JetStream) int {
	t.Helper()
	s, err := js.Stream(t.Context(), "USERS")
	require.NoError(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("inbox.bob"))
	require.NoError(t, err)
	return int(info.State.Subjects["inbox.bob"])
}

func TestClusterKeepsAcceptedMessagesAfterLeaderLoss(t *testing.T) {
	cluster.OnlyWithClusters(t)
	t.Parallel()
	servers := sandbox.NewNATSCluster(t, 3)
	w, js := twoPhaseAt(t, servers.URL(), "SENDONCE_NATS_REPLICAS=3")
	l := startLedger(w, 8)
	for range 2 {
		l.more(200, accepted)
		leader := leaderOf(t, js, servers)
		leader.Kill()
		l.more(200, accepted)
		leader.Start()
	}
	l.holds(js)
	require.Zero(t, l.counts.saved)
	for _, acks := range l.acks {
		for _, ack := range acks {
			if ack.Ack == "accepted" {
				require.Equal(t, "replicated", ack.Durability)
			}
		}
	}
}

// leaderOf is the server that leads the stream of accepted messages.
func leaderOf(t *testing.T, js jetstream.JetStream, servers sandbox.NATSCluster) (leader *sandbox.NATSServer) {
	t.Helper()
	cluster.Eventually(t, func() bool {
		s, err := js.Stream(t.Context(), "ACCEPTED")
		if err != nil {
			return false
		}
		for _, server := range servers {
			if server.Name == s.CachedInfo().Cluster.Leader {
				leader = server
			}
		}
		return leader != nil
	})
	return leader
}

func TestReconcileFindsMessagesNeverDelivered(t *testing.T) {
	t.Parallel()
	cluster.OnlyWithFaults(t)
	w := cluster.OpenTwoPhase(t)
	ack := w.Accept("lost", `1`)
	require.Equal(t, 204, w.Admin.Tick("save").Status)
	require.Zero(t, w.SavedMessages(), "it is too young to be missed")
	require.Eventually(t, func() bool { return w.Admin.Tick("save").Status == 204 && w.SavedMessages() == 1 }, time.Minute, time.Second)
	require.NotEqual(t, "accepted", w.Message(ack.ServerMsgID).State)
}
