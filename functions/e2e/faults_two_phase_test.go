package e2e

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

// The tests of this file use two-phase acknowledgements: a message is accepted when NATS has stored it, and saved when
// Postgres has stored it, too.

func TestKilledNATSLosesNoAcceptedMessage(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	server := sandbox.NewNATSServer(t)
	l := startAcceptLoad(twoPhaseAt(t, server.URL()), 8)
	for range 2 {
		l.waitAcknowledged(200, "accepted")
		server.Kill()
		l.waitAcknowledged(50, "best-effort")
		server.Start()
	}
	l.waitAcknowledged(200, "accepted")
	require.Zero(t, l.finish(), "overtaken messages")
	require.Empty(t, l.Outcomes()["submit"].Failures)
	require.Zero(t, l.Acknowledged("saved"))
}

func TestMessagesAreAcceptedWithoutPostgres(t *testing.T) {
	t.Parallel()
	c := cluster.OpenTwoPhase(t)
	proxy := sandbox.NewProxy(t, c.DatabaseURL)
	c.Env = append(c.Env, "DATABASE_URL="+proxy.URL())
	c.StartWithoutTrigger()
	c.StartTrigger(c.Client.BaseURL)
	l := startAcceptLoad(c, 4)
	l.waitAcknowledged(50, "accepted")
	proxy.Cut()
	for began := time.Now(); time.Since(began) < outage(t); {
		l.waitAcknowledged(20, "accepted")
	}
	saved := c.SavedMessages()
	l.waitAcknowledged(20, "accepted")
	require.Equal(t, saved, c.SavedMessages(), "nothing is saved while Postgres cannot be reached")
	proxy.Restore()
	l.waitAcknowledged(20, "accepted")
	require.Zero(t, l.finish(), "overtaken messages")
	require.Empty(t, l.Outcomes()["submit"].Failures)
	require.Zero(t, l.Acknowledged("saved")+l.Acknowledged("best-effort"))
}

// limitAccepted changes how many messages the stream of accepted messages may hold.
func limitAccepted(c *cluster.Cluster, messages int64) {
	c.T.Helper()
	js := c.JetStream()
	s, err := js.Stream(c.T.Context(), "ACCEPTED")
	require.NoError(c.T, err)
	config := s.CachedInfo().Config
	config.MaxMsgs = messages
	_, err = js.UpdateStream(c.T.Context(), config)
	require.NoError(c.T, err)
}

func TestWithFullStreamMessagesAreSavedOrRefused(t *testing.T) {
	t.Parallel()
	for _, failOpen := range []bool{true, false} {
		t.Run(fmt.Sprint("fail open ", failOpen), func(t *testing.T) {
			t.Parallel()
			c := cluster.OpenTwoPhase(t, fmt.Sprint("TWO_PHASE_FAIL_OPEN=", failOpen))
			limitAccepted(c, 40)
			c.StartTrigger(c.Client.BaseURL)
			l := startAcceptLoad(c, 4)
			if failOpen {
				l.waitAcknowledged(25, "best-effort")
			} else {
				cluster.Eventually(t, func() bool { return len(l.Outcomes()["submit"].Failures) >= 20 })
			}
			require.NotZero(t, l.Acknowledged("accepted"), "messages were accepted while the stream had room")
			limitAccepted(c, -1)
			l.waitAcknowledged(25, "accepted")
			require.Zero(t, l.finish(), "overtaken messages")
			require.Zero(t, l.Acknowledged("saved"))
			refused := requireRefusals(t, l.Generator)
			require.Equal(t, failOpen, refused == 0)
			require.Equal(t, failOpen, l.Acknowledged("best-effort") > 0)
		})
	}
}

func TestSwitchingTwoPhaseOffAndOnLosesNothing(t *testing.T) {
	t.Parallel()
	c := cluster.OpenTwoPhase(t)
	l := startAcceptLoad(c, 4)
	l.waitAcknowledged(100, "accepted") // without a trigger none of these messages is saved
	restartWith(c, "TWO_PHASE_ENABLED=false")
	l.waitAcknowledged(25, "saved")
	accepted := l.Acknowledged("accepted")
	drain := cluster.StartProcess(t, c.Bin, c.Env, "drain")
	require.NoError(t, drain.WaitFor(t.Context(), " accepted messages are not saved"))
	unsaved, err := strconv.Atoi(regexp.MustCompile(`(\d+) accepted messages are not saved`).FindStringSubmatch(drain.Output())[1])
	require.NoError(t, err)
	require.GreaterOrEqual(t, unsaved, accepted, "unsaved is larger if the response to an accepted message was lost")
	trigger := c.StartTrigger(c.Client.BaseURL)
	cluster.WaitExit(t, drain)
	require.Zero(t, drain.ExitCode(), drain.Output())
	require.Contains(t, drain.Output(), "0 accepted messages are not saved")
	require.GreaterOrEqual(t, c.Admin.Count(`select count(*) from messages where accept_seq is not null`), accepted, "all that was accepted is saved")
	l.waitAcknowledged(25, "saved")
	require.Equal(t, accepted, l.Acknowledged("accepted"), "nothing is accepted while two-phase is off")
	_, err = trigger.Terminate(cluster.WaitLimit)
	require.NoError(t, err)
	restartWith(c, "TWO_PHASE_ENABLED=true")
	c.StartTrigger(c.Client.BaseURL)
	l.waitAcknowledged(50, "accepted")
	require.Zero(t, l.finish(), "overtaken messages")
	require.Zero(t, l.Acknowledged("best-effort"))
}

// restartWith starts a process with a changed setting, and then ends the old process.
func restartWith(c *cluster.Cluster, setting string) {
	c.T.Helper()
	old := c.Process(cluster.All)
	c.Env = append(c.Env, setting)
	c.StartWithoutTrigger()
	_, err := old.Terminate(cluster.WaitLimit)
	require.NoError(c.T, err)
}

// First the trigger is killed, and then the process that accepts and saves messages.
func TestAcceptedMessagesSurviveKilledProcesses(t *testing.T) {
	t.Parallel()
	c := cluster.OpenTwoPhase(t)
	trigger := c.StartTrigger(c.Client.BaseURL)
	l := startAcceptLoad(c, 4)
	l.waitAcknowledged(100, "accepted")
	require.NoError(t, trigger.Kill())
	l.waitAcknowledged(100, "accepted")
	require.NoError(t, c.Process(cluster.All).Kill())
	c.StartWithoutTrigger()
	c.StartTrigger(c.Client.BaseURL)
	l.waitAcknowledged(50, "accepted")
	require.Zero(t, l.finish(), "overtaken messages")
}

// valve is a proxy of NATS that can hold back what NATS sends.
type valve struct {
	url string
	out sync.RWMutex // while a test has it write-locked, nothing from NATS reaches the client
}

func newValve(t *testing.T, server *natsserver.Server) *valve {
	t.Helper()
	address, err := url.Parse(server.URL())
	require.NoError(t, err)
	v := &valve{}
	address.Host = sandbox.ServeTCP(t, func(_ int, client net.Conn) {
		upstream, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(server.Port()))
		if err != nil {
			return
		}
		go func() { defer upstream.Close(); _, _ = io.Copy(upstream, client) }() // ends when either side closes its connection
		v.copy(client, upstream)
	})
	v.url = address.String()
	return v
}

func (v *valve) copy(client io.Writer, server io.Reader) {
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

func TestRepeatAfterCrashBeforeResponseIsTheSameMessage(t *testing.T) {
	t.Parallel()
	sandbox.OnlyWithFaults(t)
	c := cluster.OpenTwoPhase(t)
	direct, v := c.Env, newValve(t, c.NATS)
	c.Env = append(append([]string{}, direct...), "NATS_URL="+v.url)
	c.StartWithoutTrigger()
	require.Equal(t, "accepted", c.Accept("before", `0`).Ack)
	stream, err := c.JetStream().Stream(t.Context(), "ACCEPTED")
	require.NoError(t, err)

	v.out.Lock()
	defer v.out.Unlock()
	client := *c.Client
	client.Tries = 1
	result := make(chan error, 1)
	request := api.MessageRequest{ClientMsgID: "once", To: "user:bob", Data: api.JSON(`1`), Ack: "accepted"}
	go func() {
		_, err := client.SubmitMessage(t.Context(), request)
		result <- err
	}()
	cluster.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	}, "the stream has the message")
	require.NoError(t, c.Process(cluster.All).Kill())
	require.Error(t, <-result)

	c.Env = direct
	c.StartWithoutTrigger()
	again := c.Admin.Post(cluster.MessagesPath, `{"client_msg_id":"once","to":"user:bob","data":1,"ack":"accepted"}`)
	require.Equal(t, 202, again.Status, again.Text)
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	require.EqualValues(t, 2, again.Data("accept_seq"))
	c.StartTrigger(c.Client.BaseURL)
	id := again.Data("server_msg_id").(string)
	cluster.Eventually(t, func() bool { return c.Message(id).State == "sent" }, "the message is saved and sent")
	require.Len(t, c.Inbox("bob"), 2)
	require.Equal(t, 2, c.SavedMessages())
}

func TestNATSClusterKeepsAcceptedMessagesAfterLeaderLoss(t *testing.T) {
	cluster.OnlyWithClusters(t)
	t.Parallel()
	servers := sandbox.NewNATSCluster(t, 3)
	c := twoPhaseAt(t, servers.URL(), "SENDONCE_NATS_REPLICAS=3")
	first, err := c.Client.SubmitMessage(t.Context(), api.MessageRequest{
		From: "first", ClientMsgID: "1", To: "user:bob", Data: api.JSON(`{"sender":"first","n":1}`), Ack: "accepted",
	})
	require.NoError(t, err)
	require.Equal(t, "replicated", first.Durability)
	l := startAcceptLoad(c, 8)
	// finish compares the ledger with Postgres, so the ledger must have the message that was accepted above.
	l.Sent(load.Message{Sender: "first", N: 1}, load.Sent{ID: first.ServerMsgID, Ack: "accepted"})
	for range 2 {
		l.waitAcknowledged(200, "accepted")
		leader := leaderOf(c, servers)
		leader.Kill()
		l.waitAcknowledged(200, "accepted")
		leader.Start()
	}
	l.finish() // its result is not checked: when a stream gets another leader, messages may be overtaken (see bus.Publish)
	require.Zero(t, l.Acknowledged("saved"))
}

// leaderOf returns the server that leads the stream of accepted messages.
func leaderOf(c *cluster.Cluster, servers sandbox.NATSCluster) (leader *sandbox.NATSServer) {
	c.T.Helper()
	cluster.Eventually(c.T, func() bool {
		s, err := c.JetStream().Stream(c.T.Context(), "ACCEPTED")
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
