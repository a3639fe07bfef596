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

// learnsWithin is how soon every process with NATS knows of a change.
const learnsWithin = time.Second

// split is each function as a process of its own, for callers that are changed.
type split struct {
	*cluster.Cluster
	admin *cluster.Client
	of    map[string]string // addresses
	bus   *bus.Bus
	n     int
}

func startSplit(t *testing.T) *split {
	o := cluster.New(t)
	s := &split{Cluster: o, of: map[string]string{}}
	for _, f := range []string{"admin", "stream", "claim", "submit"} {
		s.of[f] = o.Start(f)
	}
	s.admin = o.At(s.of["admin"])
	var err error
	s.bus, err = bus.Open(bus.Config{URL: o.NATS.URL(), Replicas: 1}, sandbox.Log(t))
	require.NoError(t, err)
	t.Cleanup(s.bus.Close)
	require.NoError(t, s.bus.Ensure(t.Context()))
	return s
}

// caller makes a caller and gives what each function is to it.
func (s *split) caller(name, role string) (as func(function string) *cluster.Client, id string) {
	s.T.Helper()
	made := s.admin.Post("/api/v1/admin/callers", fmt.Sprintf(`{"name":%q,"roles":[%q]}`, name, role))
	require.Equal(s.T, 200, made.Status, made.Text)
	return func(function string) *cluster.Client {
		return &cluster.Client{T: s.T, URL: s.of[function], User: name, Password: made.Data("token").(string), Owner: s.Admin.Owner}
	}, made.Data("id").(string)
}

// publish sends an event to a user, as the relay does, once the broker is there.
func (s *split) publish(user string) {
	s.T.Helper()
	s.n++
	e := cloudevents.NewEvent()
	e.SetID(fmt.Sprint("event-", s.n))
	e.SetSource("/test")
	e.SetType("text")
	require.EventuallyWithT(s.T, func(t *assert.CollectT) {
		for _, err := range s.bus.Publish(s.T.Context(), []bus.Message{{Subject: bus.UserSubject(user), MsgID: e.ID(), Event: e}}) {
			require.NoError(t, err)
		}
	}, cluster.WaitLimit, 10*time.Millisecond)
}

func inTime[T any](t *testing.T, d time.Duration, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(d):
		require.Fail(t, "not in time", what)
	}
	return v
}

const poll = "/api/v1/sms/tasks/pending?app_id=app&wait=30"

func TestChangedCallerLosesOpenStreamsAndPolls(t *testing.T) {
	t.Parallel()
	s := startSplit(t)
	ann, _ := s.caller("ann", "receiver")
	submits, _ := s.caller("submits", "submitter")
	other, _ := s.caller("other", "sender")
	calm := cluster.OpenStream(ann("stream"), cluster.StreamsPath+"ann")
	for _, c := range []struct {
		name, path, body string
		status           int
	}{
		{"revoked", "/revoke", "", 401},
		{"rotated", "/rotate", "", 401},
		{"restricted", "", `{"roles":["trigger"]}`, 403},
	} {
		as, id := s.caller(c.name, "receiver")
		sends, senderID := s.caller("sender-"+c.name, "sender")
		stream, socket := cluster.OpenStream(as("stream"), cluster.StreamsPath+c.name), cluster.OpenSocket(as("stream"), c.name, nil)
		s.publish(c.name)
		require.NotEmpty(t, stream.NextMessage())
		require.Equal(t, api.StreamMessage, socket.Next().Event)
		polled := sends("claim").StartWaiting(poll)
		streamEnds, socketEnds := stream.Ended(), socket.Ended()

		method := "POST"
		if c.path == "" {
			method = "PUT"
		}
		for _, changed := range []string{id, senderID} {
			require.Equal(t, 200, s.admin.Do(method, "/api/v1/admin/callers/"+changed+c.path, c.body).Status)
		}
		require.Equal(t, c.status, inTime(t, learnsWithin, polled, "the poll").Status, c.name)
		rest := inTime(t, learnsWithin, streamEnds, "the stream")
		require.NotContains(t, rest, "data:")
		require.Error(t, inTime(t, learnsWithin, socketEnds, "the socket"))
		s.publish(c.name)
		require.Equal(t, c.status, as("stream").Get(cluster.StreamsPath+c.name).Status)
	}

	sent := submits("submit").Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)
	require.Equal(t, 200, sent.Status, sent.Text)
	require.Len(t, other("claim").Get(poll).List(), 1, "no poll of a revoked caller took it")
	s.publish("ann")
	require.NotEmpty(t, calm.NextMessage(), "who was not changed is not disturbed")
}

func TestRevokeWithoutNATSAppliesWhenItIsBack(t *testing.T) {
	t.Parallel()
	s := startSplit(t)
	ann, _ := s.caller("ann", "receiver")
	bob, id := s.caller("bob", "receiver")
	sends, senderID := s.caller("sender", "sender")
	calm, stream := cluster.OpenStream(ann("stream"), cluster.StreamsPath+"ann"), cluster.OpenStream(bob("stream"), cluster.StreamsPath+"bob")
	polled := sends("claim").StartWaiting(poll)
	ends := stream.Ended()

	require.NoError(t, s.NATS.Stop())
	began := time.Now()
	for _, revoked := range []string{id, senderID} {
		require.Equal(t, 200, s.admin.Post("/api/v1/admin/callers/"+revoked+"/revoke", "").Status)
	}
	require.Less(t, time.Since(began), 5*time.Second, "the operator is not kept waiting")
	s.StartNATS()
	require.Equal(t, 401, inTime(t, cluster.WaitLimit/3, polled, "the poll").Status)
	require.NotContains(t, inTime(t, cluster.WaitLimit/3, ends, "the stream"), "data:")
	require.Less(t, time.Since(began), 25*time.Second, "sooner than what is remembered of a caller is looked up again")
	s.publish("ann")
	require.NotEmpty(t, calm.NextMessage())
}
