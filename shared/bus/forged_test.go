package bus

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
)

// forgeries are messages that a function would take for more than a wake-up, on
// subjects where their types do not belong.
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

// posted counts what a function was given, by its type and its media type.
func (f *function) posted() map[string]int {
	counts := map[string]int{}
	for _, c := range f.seen() {
		counts[c.path+" "+c.header.Get("Ce-Type")+" "+c.header.Get("Content-Type")]++
	}
	return counts
}

func TestForgedWakeUpIsPostedAsTick(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	f := newFunction(t, answering(204))
	save := SaveRoutes(SaveConfig{Shards: 1, BatchSize: 10})
	trigger := runTrigger(t, g.bus(UserTrigger), testConfig(f), slices.Concat(Routes(0), save)...)
	eventually(t, func() bool { return trigger.Ready() == nil && f.of("e") == 1 && f.of("a") == 1 }, "the rightful events arrive")
	wechat, err := jetstream.New(g.attacker("wechat").nc)
	require.NoError(t, err)
	wants := map[string]int{}
	for durable, subject := range map[string]string{"deliver": WakeDeliver, "save": WakeSave} {
		for _, m := range forgeries(subject, "sendonce.task.succeeded.v1", AcceptedType, RefusedType) {
			before := trigger.Counts()[durable].Acked
			_, err := wechat.PublishMsg(within(t, soon), m)
			require.NoError(t, err)
			wants["POST /events/"+durable+" sendonce.tick."+durable+".v1 "]++
			eventually(t, func() bool { return trigger.Counts()[durable].Acked == before+1 }, "it wakes the function")
		}
	}
	require.Zero(t, f.of("forged"))
	publishAll(t, g.bus("relay"), eventMessage("later"))
	_, err = g.bus("messages").Accept(within(t, soon), acceptance(t, "b", "x"))
	require.NoError(t, err)
	eventually(t, func() bool { return f.of("later") == 1 && f.of("b") == 1 }, "the rightful events go on")
	wants["POST /events/deliver sendonce.task.succeeded.v1 "] = 2
	wants["POST /events/save "+AcceptedType+" application/json"] = 2
	require.Equal(t, wants, f.posted())
}

// Whoever may publish to one of these streams must not get anything into the
// functions that belongs to another one.
func TestMisplacedEventBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	refused := map[string]int{}
	for user, messages := range map[string][]*nats.Msg{
		"relay":    forgeries("evt.task.failed", "sendonce.task.succeeded.v1", AcceptedType, RefusedType),
		"deliver":  forgeries(EventDelivered, "sendonce.task.succeeded.v1", AcceptedType, RefusedType),
		"messages": forgeries("acc.1.", "sendonce.task.failed.v1", "sendonce.message.delivered.v1", RefusedType),
	} {
		js, err := jetstream.New(g.attacker(user).nc)
		require.NoError(t, err)
		for i, m := range messages {
			if user == "messages" { // one for each id
				m.Subject += strconv.Itoa(i)
			}
			_, err := js.PublishMsg(within(t, soon), m)
			require.NoError(t, err)
			if m.Header.Get("ce-specversion") != "" {
				refused[user]++
			}
		}
	}
	publishAll(t, g.bus("relay"), eventMessage("later"))
	_, err := g.bus("messages").Accept(within(t, soon), acceptance(t, "b", "x"))
	require.NoError(t, err)

	var taken sync.Map // ids of events, and of those in batches
	f := newFunction(t, func(w http.ResponseWriter, c call, _ int) {
		for _, id := range idsOf(t, c) {
			taken.Store(c.path+" "+id, true)
		}
		w.WriteHeader(204)
	})
	trigger := runTrigger(t, g.bus(UserTrigger), testConfig(f), slices.Concat(Routes(0), SaveRoutes(SaveConfig{
		Shards: 1, BatchSize: 10, BatchWait: 50 * time.Millisecond, DeliverBeforeSaved: true,
	}))...)
	for _, right := range []string{"deliver e", "deliver later", "deliver a", "deliver b", "save a", "save b"} {
		eventually(t, func() bool { _, is := taken.Load("POST /events/" + right); return is }, right)
	}
	for durable, n := range map[string]int{recordRoute: refused["relay"] + refused["deliver"], "save-1-of-1": refused["messages"], "deliver-1-of-1": refused["messages"]} {
		eventually(t, func() bool { return trigger.Counts()[durable].DeadLettered == uint64(n) }, durable)
	}
	for _, c := range f.seen() {
		require.NotEqual(t, "forged", c.id)
		require.NotContains(t, c.body, "forged")
	}
	dead, err := g.operator.Stream(t.Context(), StreamDeadLetters)
	require.NoError(t, err)
	m, err := dead.GetLastMsgForSubject(t.Context(), "dlq.EVENTS.record")
	require.NoError(t, err)
	require.Contains(t, m.Header.Get("dlq-reason"), "does not belong to its subject")
}
