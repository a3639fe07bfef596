package trigger

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
	"github.com/sendonce/sendonce/shared/settings"
)

// securedBroker is a NATS server with all users, all streams, an event and an accepted message. Its JS has the
// permissions of the operator.
type securedBroker struct {
	*bustest.Broker
	t *testing.T
}

func newSecuredBroker(t *testing.T) *securedBroker {
	t.Helper()
	users, passwords := bus.Users(bus.StreamAccepted), map[string]string{}
	for _, u := range users {
		passwords[u.Name] = bustest.Password
	}
	g := &securedBroker{bustest.NewBrokerWith(t, natsserver.Options{
		Dir: t.TempDir(), Config: bus.PasswordConfig(passwords) + bus.ServerConfig(users, ""), User: bus.UserOperator, Password: bustest.Password,
	}), t}
	require.NoError(t, g.bus(bus.UserTrigger).Ensure(bustest.Within(t, bustest.Soon)))
	publishAll(t, g.bus("relay"), eventMessage("e"))
	acceptAll(t, g.bus("messages"), 1, 1)
	return g
}

func (g *securedBroker) bus(user string) *bus.Bus {
	g.t.Helper()
	return newBus(g.t, g.URLAs(user))
}

// login returns a client with the permissions of a user, for requests that our code does not make.
func (g *securedBroker) login(user string) jetstream.JetStream {
	g.t.Helper()
	js, err := jetstream.New(g.ConnAs(user, bus.ReplyPrefix(user)))
	require.NoError(g.t, err)
	return js
}

// forgeries returns forged events of types that do not belong to the subject, in several forms. The trigger posts those without
// ce-specversion as bus.UnreadableType, but on a subject of wake-ups it posts all forms as ticks.
func forgeries(subject string, types ...string) (all []*nats.Msg) {
	attributes := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"forged"}, "ce-source": {"/sendonce"}, "ce-acceptseq": {"1"}, "ce-fp": {"00"}}
	forge := func(data string, more nats.Header) {
		m := &nats.Msg{Subject: subject, Header: maps.Clone(attributes), Data: []byte(data)}
		maps.Copy(m.Header, more)
		all = append(all, m)
	}
	for _, kind := range types {
		forge(`{}`, nats.Header{"ce-type": {kind}})
		forge(`{}`, nats.Header{"CE-Type": {" " + kind + "\t"}})
		event := `{"specversion":"1.0","id":"forged","source":"/sendonce","type":"` + kind + `","acceptseq":"1","data":{}}`
		for media, data := range map[string]string{"application/cloudevents+json": event, " Application/CloudEvents-Batch+JSON": "[" + event + "]"} {
			forge(data, nats.Header{"Content-Type": {media}, "ce-type": {"sendonce.task.succeeded.v1"}})
			all = append(all, &nats.Msg{Subject: subject, Header: nats.Header{"Content-Type": {media}}, Data: []byte(data)})
		}
	}
	return all
}

// countsByType counts the calls by route, event type and media type.
func (f *function) countsByType() map[string]int {
	counts := map[string]int{}
	for _, c := range f.allCalls() {
		counts[c.route+" "+c.header.Get("Ce-Type")+" "+c.header.Get("Content-Type")]++
	}
	return counts
}

func TestForgedWakeUpIsPostedAsTick(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	f := newFunction(t, respondWith(204))
	save := SaveRoutes(settings.TwoPhase{Shards: 1, BatchSize: 10}, 0)
	trigger := runTrigger(t, g.bus(bus.UserTrigger), testConfig(f), slices.Concat(Routes(0), save)...)
	bustest.Eventually(t, func() bool { return trigger.Ready() == nil && f.countOf("e") == 1 && f.countOf("1") == 1 }, "the valid events are delivered")
	wechat, want := g.login("wechat"), map[string]int{}
	for durable, subject := range map[string]string{"deliver": bus.WakeDeliver, "save": bus.WakeSave} {
		for _, m := range forgeries(subject, "sendonce.task.succeeded.v1", bus.AcceptedType, RefusedType) {
			before := trigger.Counts()[durable].Acked
			_, err := wechat.PublishMsg(bustest.Within(t, bustest.Soon), m)
			require.NoError(t, err)
			want["POST /events/"+durable+" sendonce.tick."+durable+".v1 "]++
			bustest.Eventually(t, func() bool { return trigger.Counts()[durable].Acked == before+1 }, "the function is woken")
		}
	}
	require.Zero(t, f.countOf("forged"))
	publishAll(t, g.bus("relay"), eventMessage("later"))
	_, err := g.bus("messages").Accept(bustest.Within(t, bustest.Soon), acceptance(t, "b", "x"))
	require.NoError(t, err)
	bustest.Eventually(t, func() bool { return f.countOf("later") == 1 && f.countOf("b") == 1 }, "later valid events are delivered")
	want["POST /events/deliver sendonce.task.succeeded.v1 "] = 2
	want["POST /events/save "+bus.AcceptedType+" application/json"] = 2
	require.Equal(t, want, f.countsByType())
}

func TestMessageThatIsNoEventIsPostedAsUnreadable(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	f := newFunction(t, respondWith(204))
	runTrigger(t, g.bus(bus.UserTrigger), testConfig(f), SaveRoutes(settings.TwoPhase{Shards: 1, BatchSize: 10}, 0)...)
	bustest.Eventually(t, func() bool { return f.countOf("1") == 1 }, "the valid message is delivered")
	_, err := g.login("messages").Publish(bustest.Within(t, bustest.Soon), "acc.0.x", []byte(`{"stream":"USERS","seq":1}`))
	require.NoError(t, err)
	bustest.Eventually(t, func() bool { return f.countsByType()["POST /events/save "+bus.UnreadableType+" "] == 1 }, "it is posted")
}

// An event that is published to a stream where its type does not belong is not posted.
func TestMisplacedEventBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	refused := map[string]int{}
	for user, messages := range map[string][]*nats.Msg{
		"relay":    forgeries("evt.task.failed", "sendonce.task.succeeded.v1", bus.AcceptedType, RefusedType),
		"deliver":  forgeries(bus.EventDelivered, "sendonce.task.succeeded.v1", bus.AcceptedType, RefusedType),
		"messages": forgeries("acc.1.", "sendonce.task.failed.v1", "sendonce.message.delivered.v1", RefusedType),
	} {
		js := g.login(user)
		for i, m := range messages {
			if user == "messages" { // ACCEPTED stores one message per subject
				m.Subject += strconv.Itoa(i)
			}
			_, err := js.PublishMsg(bustest.Within(t, bustest.Soon), m)
			require.NoError(t, err)
			if m.Header.Get("ce-specversion") != "" {
				refused[user]++
			}
		}
	}
	publishAll(t, g.bus("relay"), eventMessage("later"))
	_, err := g.bus("messages").Accept(bustest.Within(t, bustest.Soon), acceptance(t, "b", "x"))
	require.NoError(t, err)

	var posted sync.Map // route and id of each posted event, whether posted alone or in a batch
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		for _, id := range idsOf(t, c) {
			posted.Store(c.route+" "+id, true)
		}
		w.WriteHeader(204)
	})
	trigger := runTrigger(t, g.bus(bus.UserTrigger), testConfig(f), slices.Concat(Routes(0), SaveRoutes(settings.TwoPhase{
		Shards: 1, BatchSize: 10, BatchWait: 50 * time.Millisecond, DeliverBeforeSaved: true,
	}, 0))...)
	for _, valid := range []string{"deliver e", "deliver later", "deliver 1", "deliver b", "save 1", "save b"} {
		bustest.Eventually(t, func() bool { _, is := posted.Load("POST /events/" + valid); return is }, valid)
	}
	for durable, n := range map[string]int{bus.RecordDurable: refused["relay"] + refused["deliver"], "save-1-of-1": refused["messages"], "deliver-1-of-1": refused["messages"]} {
		bustest.Eventually(t, func() bool { return trigger.Counts()[durable].DeadLettered == uint64(n) }, durable)
	}
	for _, c := range f.allCalls() {
		require.NotEqual(t, "forged", c.id)
		require.NotContains(t, c.body, "forged")
	}
	m, err := g.Stream(bus.StreamDeadLetters).GetLastMsgForSubject(t.Context(), "dlq.EVENTS.record")
	require.NoError(t, err)
	require.Contains(t, m.Header.Get("dlq-reason"), "does not belong to its subject")
}
