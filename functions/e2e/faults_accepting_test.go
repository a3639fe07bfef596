package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// onlyWithFaults leaves a test that takes long to make faults.
func onlyWithFaults(t *testing.T) {
	t.Helper()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("make faults runs it")
	}
}

func TestNothingAcceptedIsLostWhenTheNATSServerIsKilled(t *testing.T) {
	t.Parallel()
	onlyWithFaults(t)
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
	require.Zero(t, l.counts.saved, "who was not accepted was told so")
}

func TestWhilePostgresIsAwayAllAreAcceptedAndThenSaved(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	proxy := sandbox.NewProxy(t, w.url)
	w.env = append(w.env, "DATABASE_URL="+proxy.URL())
	w.restart()
	w.trigger(w.at)
	l := startLedger(w, 4)
	l.more(100, accepted)
	proxy.Cut()
	for began := time.Now(); time.Since(began) < outage(t); {
		l.more(20, accepted)
	}
	away := w.saved()
	l.more(20, accepted)
	require.Equal(t, away, w.saved(), "Postgres is away")
	proxy.Restore()
	l.more(20, accepted)
	l.holds(w.jetStream())
	require.Zero(t, l.overtaken)
	require.Empty(t, l.failed)
	require.Equal(t, l.counts.accepted, l.counts.all())
}

// limitAccepted is how many messages the stream of accepted messages may have. A trigger
// sets its bytes as the settings say.
func limitAccepted(w *town, messages int64) {
	w.t.Helper()
	js := w.jetStream()
	s, err := js.Stream(w.t.Context(), "ACCEPTED")
	require.NoError(w.t, err)
	config := s.CachedInfo().Config
	config.MaxMsgs = messages
	_, err = js.UpdateStream(w.t.Context(), config)
	require.NoError(w.t, err)
}

func TestWhatTheFullStreamDoesNotTakeIsSavedAtOnceOrRefused(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{true, false} {
		t.Run(fmt.Sprint("fail open ", open), func(t *testing.T) {
			t.Parallel()
			w := twoPhase(t, fmt.Sprint("TWO_PHASE_FAIL_OPEN=", open))
			limitAccepted(w, 80)
			w.trigger(w.at)
			l := startLedger(w, 4)
			if open {
				l.more(50, bestEffort)
			} else {
				l.refused(20)
			}
			require.NotZero(t, l.sum().accepted, "while there was room")
			limitAccepted(w, -1)
			l.more(50, accepted)
			l.holds(w.jetStream())
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

func TestSwitchedOffWhileLoadedAndDrainedAndOnAgainNothingIsLost(t *testing.T) {
	t.Parallel()
	w := twoPhase(t)
	l := startLedger(w, 4)
	l.more(200, accepted) // without a trigger none of them is saved
	restartWith(w, "TWO_PHASE_ENABLED=false", l)
	l.more(50, savedAtOnce)
	before := l.sum().accepted
	trigger := startProcess(t, w.bin, append(append([]string{}, w.env...), "SENDONCE_FUNCTIONS_URL="+w.at), "trigger")
	js := w.jetStream()
	require.Eventually(t, func() bool {
		_, err := js.Consumer(t.Context(), "ACCEPTED", "save-1-of-1")
		return err == nil
	}, waitLimit, 10*time.Millisecond)
	text, err := runDrain(w)
	require.NoError(t, err, text)
	require.Contains(t, text, "0 accepted messages are not saved")
	require.GreaterOrEqual(t, w.looker.count(`select count(*) from accepted_messages`), before, "all that was accepted is saved")
	l.more(50, savedAtOnce)
	require.Equal(t, before, l.sum().accepted, "it is off")
	_, err = trigger.Terminate(waitLimit)
	require.NoError(t, err)
	restartWith(w, "TWO_PHASE_ENABLED=true", l)
	w.trigger(w.at)
	l.more(100, accepted)
	l.holds(js)
	require.Zero(t, l.overtaken)
	require.Zero(t, l.counts.bestEffort)
}

// runDrain runs the command and returns what it prints.
func runDrain(w *town) (text string, err error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitLimit)
	defer cancel()
	drain := exec.CommandContext(ctx, w.bin, "drain")
	drain.Env, drain.WaitDelay = asComponent(w.t, w.env, "drain"), time.Second
	out, err := drain.CombinedOutput()
	return string(out), err
}

// restartWith replaces the process by one with another setting, under the load of l.
func restartWith(w *town, setting string, l *ledger) {
	w.t.Helper()
	old := w.process
	w.env = append(w.env, setting)
	w.restart()
	l.move()
	_, err := old.Terminate(waitLimit)
	require.NoError(w.t, err)
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
	v := &valve{url: "nats://" + listener.Addr().String()}
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

func TestARepeatAfterADeathBetweenTheStreamAndTheAnswerIsTheSameMessage(t *testing.T) {
	t.Parallel()
	onlyWithFaults(t)
	w := twoPhase(t)
	direct, v := w.env, newValve(t, w.nats)
	w.env = append(append([]string{}, direct...), "NATS_URL="+v.url)
	w.restart()
	w.accept("before", `0`)
	stream, err := w.jetStream().Stream(t.Context(), "ACCEPTED")
	require.NoError(t, err)

	v.out.Lock()
	defer v.out.Unlock()
	client := *w.client
	client.Tries = 1
	answer := make(chan error, 1)
	request := api.MessageRequest{ClientMsgID: "once", To: "user:bob", Data: api.JSON(`1`), Ack: "accepted"}
	go func() {
		_, err := client.SubmitMessage(t.Context(), request)
		answer <- err
	}()
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	}, waitLimit, time.Millisecond, "the stream has it")
	require.NoError(t, w.process.Kill())
	require.Error(t, <-answer)

	w.env = direct
	w.restart()
	again := w.looker.post(post, `{"client_msg_id":"once","to":"user:bob","data":1,"ack":"accepted"}`)
	require.Equal(t, 202, again.status, again.text)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.EqualValues(t, 2, again.data("accept_seq"))
	w.trigger(w.at)
	id := again.data("server_msg_id").(string)
	require.Eventually(t, func() bool { return w.townState(id) == "sent" }, waitLimit, 10*time.Millisecond, "committed after bob has it")
	require.Len(t, w.inbox("bob"), 2)
	require.Equal(t, 2, w.saved())
}

func TestABeforeSavedDeliveryReachesItsReceiverWhilePostgresIsAwayAndOnlyOnce(t *testing.T) {
	t.Parallel()
	w := twoPhase(t, "TWO_PHASE_DELIVER_BEFORE_SAVED=true")
	proxy := sandbox.NewProxy(t, w.url)
	w.env = append(w.env, "DATABASE_URL="+proxy.URL())
	w.restart()
	w.trigger(w.at)
	l := startLedger(w, 4)
	l.more(20, accepted)
	proxy.Cut()
	told := l.sum().all()
	l.more(40, accepted)
	js := w.jetStream()
	require.Eventually(t, func() bool { return inboxHas(t, js) >= told+40 }, waitLimit, 20*time.Millisecond, "bob has them")
	require.Less(t, w.saved(), told+40, "and they are not saved")
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

func TestAClusterThatLosesItsLeaderHasWhatItAccepted(t *testing.T) {
	if os.Getenv("SENDONCE_CLUSTER") == "" {
		t.Skip("make cluster runs it")
	}
	t.Parallel()
	cluster := sandbox.NewNATSCluster(t, 3)
	w, js := twoPhaseAt(t, cluster.URL(), "SENDONCE_NATS_REPLICAS=3")
	l := startLedger(w, 8)
	for range 2 {
		l.more(200, accepted)
		leader := leaderOf(t, js, cluster)
		leader.Kill()
		l.more(200, accepted)
		leader.Start()
	}
	l.holds(js)
	require.Zero(t, l.counts.saved)
	for _, acks := range l.told {
		for _, ack := range acks {
			if ack.Ack == "accepted" {
				require.Equal(t, "replicated", ack.Durability)
			}
		}
	}
}

// leaderOf is the server that leads the stream of accepted messages.
func leaderOf(t *testing.T, js jetstream.JetStream, cluster sandbox.NATSCluster) (leader *sandbox.NATSServer) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, err := js.Stream(t.Context(), "ACCEPTED")
		if err != nil {
			return false
		}
		for _, server := range cluster {
			if server.Name == s.CachedInfo().Cluster.Leader {
				leader = server
			}
		}
		return leader != nil
	}, waitLimit, 50*time.Millisecond)
	return leader
}

func TestWhatWasAcceptedAndNeverPostedIsFound(t *testing.T) {
	t.Parallel()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("it takes half a minute; make faults runs it")
	}
	w := twoPhase(t)
	ack := w.accept("lost", `1`)
	require.Equal(t, 204, w.looker.tick("save").status)
	require.Zero(t, w.saved(), "it is too young to be missed")
	require.Eventually(t, func() bool { return w.looker.tick("save").status == 204 && w.saved() == 1 }, time.Minute, time.Second)
	require.NotEqual(t, "accepted", w.townState(ack.ServerMsgID))
}
