package e2e

import (
	"fmt"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// changeLimit is the time within which every process that is connected to NATS applies a change of a caller.
const changeLimit = time.Second

// processes has the functions admin, stream, claim and submit, each as a process of its own, for tests that change
// callers.
type processes struct {
	*cluster.Cluster
	admin     *cluster.Client
	bus       *bus.Bus
	published int // number of events
}

func startProcesses(t *testing.T) *processes {
	s := &processes{Cluster: cluster.New(t)}
	s.StartFunctions("admin", "stream", "claim", "submit")
	s.admin = s.At(s.Address("admin"))
	var err error
	s.bus, err = bus.Open(bus.Config{URL: s.NATS.URL(), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(s.bus.Close)
	require.NoError(t, s.bus.Ensure(t.Context()))
	return s
}

// newCaller creates a caller. clientOf returns a client with which the caller calls a function. id is the id of the
// caller.
func (s *processes) newCaller(name, role string) (clientOf func(function string) *cluster.Client, id string) {
	s.T.Helper()
	created := s.admin.Post("/api/v1/admin/callers", fmt.Sprintf(`{"name":%q,"roles":[%q]}`, name, role)).RequireOK()
	return func(function string) *cluster.Client {
		return &cluster.Client{T: s.T, URL: s.Address(function), User: name, Password: created.Data("token").(string), Owner: s.Admin.Owner}
	}, created.Data("id").(string)
}

// publish sends an event to a user, as the relay does. It retries until NATS is available.
func (s *processes) publish(user string) {
	s.T.Helper()
	s.published++
	e := cloudevents.NewEvent()
	e.SetID(fmt.Sprint("event-", s.published))
	e.SetSource("/test")
	e.SetType("text")
	require.EventuallyWithT(s.T, func(t *assert.CollectT) {
		for _, err := range s.bus.Publish(s.T.Context(), []bus.Message{{Subject: bus.UserSubject(user), MsgID: e.ID(), Event: e}}) {
			require.NoError(t, err)
		}
	}, cluster.WaitLimit, 10*time.Millisecond)
}

const pollPath = "/api/v1/sms/tasks/pending?app_id=app&wait=30"

func TestChangedCallerLosesOpenStreamsAndPolls(t *testing.T) {
	t.Parallel()
	s := startProcesses(t)
	ann, _ := s.newCaller("ann", "receiver")
	submitter, _ := s.newCaller("submitter", "submitter")
	otherSender, _ := s.newCaller("other", "sender")
	unchanged := cluster.OpenStream(ann("stream"), cluster.StreamsPath+"ann")
	for _, c := range []struct {
		name, path, body string
		status           int
	}{
		{"revoked", "/revoke", "", 401},
		{"rotated", "/rotate", "", 401},
		{"restricted", "", `{"roles":["trigger"]}`, 403},
	} {
		receiver, receiverID := s.newCaller(c.name, "receiver")
		sender, senderID := s.newCaller("sender-"+c.name, "sender")
		stream, socket := cluster.OpenStream(receiver("stream"), cluster.StreamsPath+c.name), cluster.OpenSocket(receiver("stream"), c.name, nil)
		s.publish(c.name)
		require.NotEmpty(t, stream.NextMessage())
		require.Equal(t, api.StreamMessage, socket.Next().Event)
		polled := sender("claim").StartWaiting(pollPath)
		streamEnds, socketEnds := stream.Ended(), socket.Ended()

		method := "POST"
		if c.path == "" {
			method = "PUT"
		}
		for _, changed := range []string{receiverID, senderID} {
			s.admin.Do(method, "/api/v1/admin/callers/"+changed+c.path, c.body).RequireOK()
		}
		require.Equal(t, c.status, cluster.Within(t, changeLimit, polled, "the poll").Status, c.name)
		rest := cluster.Within(t, changeLimit, streamEnds, "the stream")
		require.NotContains(t, rest, "data:")
		require.Error(t, cluster.Within(t, changeLimit, socketEnds, "the socket"))
		s.publish(c.name)
		require.Equal(t, c.status, receiver("stream").Get(cluster.StreamsPath+c.name).Status)
	}

	submitter("submit").Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).RequireOK()
	require.Len(t, otherSender("claim").Get(pollPath).List(), 1, "no poll of a changed caller claimed the task")
	s.publish("ann")
	require.NotEmpty(t, unchanged.NextMessage(), "the stream of a caller that was not changed stays open")
}

func TestRevokeWithoutNATSAppliesAfterTheOutage(t *testing.T) {
	t.Parallel()
	s := startProcesses(t)
	ann, _ := s.newCaller("ann", "receiver")
	bob, bobID := s.newCaller("bob", "receiver")
	sender, senderID := s.newCaller("sender", "sender")
	unchanged, stream := cluster.OpenStream(ann("stream"), cluster.StreamsPath+"ann"), cluster.OpenStream(bob("stream"), cluster.StreamsPath+"bob")
	polled := sender("claim").StartWaiting(pollPath)
	ends := stream.Ended()

	require.NoError(t, s.NATS.Stop())
	began := time.Now()
	for _, revoked := range []string{bobID, senderID} {
		s.admin.Post("/api/v1/admin/callers/"+revoked+"/revoke", "").RequireOK()
	}
	require.Less(t, time.Since(began), 5*time.Second, "the call of the operator does not wait for NATS")
	s.StartNATS()
	require.Equal(t, 401, cluster.Within(t, cluster.WaitLimit/3, polled, "the poll").Status)
	require.NotContains(t, cluster.Within(t, cluster.WaitLimit/3, ends, "the stream"), "data:")
	require.Less(t, time.Since(began), 25*time.Second, "NATS brings the change before the cached caller expires")
	s.publish("ann")
	require.NotEmpty(t, unchanged.NextMessage())
}
