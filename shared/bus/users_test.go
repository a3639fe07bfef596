package bus

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

// securedBroker is a NATS server with all users, the receivers, all streams, and one message in each of
// EVENTS, MESSAGES, USERS and ACCEPTED. Its JS has the permissions of the operator.
type securedBroker struct {
	*bustest.Broker
	t *testing.T
}

func newSecuredBroker(t *testing.T, receivers ...string) *securedBroker {
	t.Helper()
	g := &securedBroker{bustest.NewBrokerWith(t, securedOptions(t.TempDir(), receivers...)), t}
	newBusWithStreams(t, Config{URL: g.URLAs(UserTrigger)})
	publishAll(t, g.bus("relay"), eventMessage("e"), Message{Subject: "msg.orders.paid", Event: bustest.Event("m")}, Message{Subject: "inbox.ann", Event: bustest.Event("i")})
	acceptAll(t, g.bus("messages"), 1, 1)
	return g
}

func securedOptions(dir string, receivers ...string) natsserver.Options {
	users, accounts, passwords := Users(StreamAccepted), "", map[string]string{}
	for _, u := range users {
		passwords[u.Name] = bustest.Password
	}
	for _, name := range receivers {
		accounts += ReceiverConfig(name)
		passwords[name] = bustest.Password
	}
	return natsserver.Options{Dir: dir, Config: PasswordConfig(passwords) + ServerConfig(users, accounts), User: UserOperator, Password: bustest.Password}
}

func (g *securedBroker) bus(user string) *Bus {
	g.t.Helper()
	return newBus(g.t, g.URLAs(user))
}

// messageCounts returns the number of messages of each stream except WAKE.
func (g *securedBroker) messageCounts() map[string]uint64 {
	g.t.Helper()
	all := map[string]uint64{}
	streams := g.JS().ListStreams(g.t.Context())
	for info := range streams.Info() {
		all[info.Config.Name] = info.State.Msgs
	}
	require.NoError(g.t, streams.Err())
	delete(all, StreamWake) // the number of wake-ups changes at any time
	return all
}

// attacker is a connection of a user for requests that the user may not make.
type attacker struct {
	t  *testing.T
	nc *nats.Conn
}

func (g *securedBroker) attacker(user string) *attacker {
	g.t.Helper()
	return &attacker{t: g.t, nc: g.ConnAs(user, ReplyPrefix(user))}
}

// denied reports whether the server has just denied a publication ("Publish") or subscription ("Subscription") to a
// subject. The server sends this error before its reply to the flush.
func (a *attacker) denied(verb, subject string) bool {
	a.t.Helper()
	require.NoError(a.t, a.nc.Flush())
	err := a.nc.LastError()
	return err != nil && strings.Contains(err.Error(), verb+` to "`+subject+`"`)
}

func (a *attacker) mayPublish(subject string) bool {
	a.t.Helper()
	require.NoError(a.t, a.nc.PublishRequest(subject, a.nc.NewRespInbox(), nil))
	return !a.denied("Publish", subject)
}

func (a *attacker) maySubscribe(subject string) bool {
	a.t.Helper()
	sub, err := a.nc.SubscribeSync(subject)
	require.NoError(a.t, err)
	may := !a.denied("Subscription", subject)
	require.NoError(a.t, errors.Join(sub.Unsubscribe(), a.nc.Flush()))
	return may
}

func TestConnectNeedsUserAndPassword(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	address, err := url.Parse(g.URL())
	require.NoError(t, err)
	for _, user := range []*url.Userinfo{nil, url.User("operator"), url.UserPassword("operator", "guess"), url.UserPassword("sys", bustest.Password)} {
		address.User = user
		_, err := nats.Connect(address.String())
		require.ErrorIs(t, err, nats.ErrAuthorization, "%v", user)
	}
}

// Each permission belongs to the users that need it and to no others. The operator, who may do everything, is not tried.
func TestUserPermissions(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	before := g.messageCounts()
	publish := map[string][]string{
		"evt.task.succeeded": {"relay"}, EventDelivered: {"relay", "deliver"}, "msg.orders.paid": {"relay", "deliver"}, "inbox.ann": {"relay", "deliver"},
		"acc.1.x": {"messages", "stream"}, "dlq.EVENTS.record": {UserTrigger}, "notify.callers": {"admin", "console"},
		"orders.paid": nil, "$SYS.REQ.SERVER.PING": nil, "$KV.x.y": nil, "_INBOX.submit.x.y": nil, "$JS.ACK.MESSAGES.points.1.1.1.1.0": nil,
		"$JS.API.INFO": nil, "$JS.API.STREAM.LIST": nil, "$JS.API.STREAM.CREATE.MINE": nil, "$JS.API.STREAM.SNAPSHOT.USERS": nil,
		"$JS.API.STREAM.RESTORE.USERS": nil, "$JS.API.STREAM.LEADER.STEPDOWN.USERS": nil, "$JS.API.CONSUMER.DURABLE.CREATE.MESSAGES.mine": nil,
		"$JS.API.CONSUMER.CREATE.MESSAGES": nil, "$JS.API.CONSUMER.CREATE.MESSAGES.mine.>": nil, "$JS.API.CONSUMER.CREATE.USERS.mine": {UserTrigger},
		"$JS.API.CONSUMER.CREATE.MESSAGES.mine": {UserTrigger}, "$JS.API.CONSUMER.MSG.NEXT.MESSAGES.points": {UserTrigger},
		"$JS.API.CONSUMER.DELETE.MESSAGES.points": {UserTrigger}, "$SENDONCE.HEADERS.MESSAGES": {"deliver"}, "$SENDONCE.HEADERS.USERS": {"deliver"},
		"$SENDONCE.HEADERS.ACCEPTED": nil, "_INBOX.deliver.x": {UserTrigger}, "_INBOX.sendonce.x": {UserTrigger},
		"$JS.API.CONSUMER.MSG.NEXT.EVENTS.record": {UserTrigger}, "$JS.API.CONSUMER.MSG.NEXT.ACCEPTED.save-1-of-1": {UserTrigger},
		"$JS.API.CONSUMER.INFO.EVENTS.record": {"relay", "deliver", UserTrigger}, "$JS.API.CONSUMER.DELETE.EVENTS.record": {UserTrigger}, "$JS.API.CONSUMER.PAUSE.EVENTS.record": nil, "$JS.ACK.EVENTS.record.1.1.1.1.0": {UserTrigger},
		"$JS.API.STREAM.MSG.GET.USERS": {"stream", "deliver"}, "$JS.API.STREAM.MSG.GET.ACCEPTED": {"messages", "stream", "save", "console"},
		"$JS.API.STREAM.MSG.GET.MESSAGES": {"deliver"}, "$JS.API.STREAM.MSG.DELETE.USERS": {"deliver"}, "$JS.API.STREAM.MSG.DELETE.ACCEPTED": nil,
		"$JS.API.STREAM.PURGE.ACCEPTED": {"save"}, "$JS.API.STREAM.PURGE.USERS": {"deliver"}, "$JS.API.STREAM.PURGE.DEADLETTERS": nil,
	}
	for _, stream := range []string{StreamWake, StreamAccepted, StreamEvents, StreamMessages, StreamUsers, StreamDeadLetters} {
		publish["$JS.API.STREAM.DELETE."+stream] = nil
		publish["$JS.API.DIRECT.GET."+stream] = nil
		publish["$JS.API.STREAM.UPDATE."+stream] = []string{UserTrigger}
		publish["$JS.API.STREAM.CREATE."+stream] = []string{UserTrigger}
	}
	subscribe := map[string][]string{
		"inbox.ann": {"stream"}, "inbox.*": {"stream"}, "inbox.>": {"stream"}, "wake.queue.*": {"claim"},
		"msg.>": nil, "msg.orders.paid": nil, "evt.>": nil, "acc.>": nil, "dlq.>": nil, "wake.>": nil, ">": nil, "*.ann": nil,
		"_INBOX.>": nil, "_INBOX.operator.>": nil, "_INBOX.nobody.>": nil, "$JS.API.>": nil, "$JS.ACK.>": nil, "$SYS.>": nil, "$JS.EVENT.ADVISORY.>": nil,
		"$SENDONCE.HEADERS.*": {UserTrigger}, "$SENDONCE.>": nil,
	}
	for _, u := range Users(StreamAccepted) {
		if u.Name == UserOperator {
			continue
		}
		a := g.attacker(u.Name)
		needed := func(by []string) bool {
			return slices.Contains(by, u.Name) || u.Name == UserAll && slices.ContainsFunc(by, func(n string) bool { return n != UserTrigger })
		}
		for subject, users := range publish {
			if needed(users) { // not tried: the request would be executed
				require.True(t, permits(u.Publish, subject), "%s must publish to %s", u.Name, subject)
			} else {
				require.False(t, a.mayPublish(subject), "%s must not publish to %s", u.Name, subject)
			}
		}
		for subject, users := range subscribe {
			require.Equal(t, needed(users), a.maySubscribe(subject), "whether %s may subscribe to %s", u.Name, subject)
		}
	}
	require.Equal(t, before, g.messageCounts(), "no stream was changed")
}

// permits reports whether one of the allowed subjects covers subject.
func permits(all []string, subject string) bool {
	return slices.ContainsFunc(all, func(allowed string) bool {
		a, s := strings.Split(allowed, "."), strings.Split(subject, ".")
		for i := range a {
			switch {
			case a[i] == ">":
				return len(s) > i
			case i >= len(s) || a[i] != "*" && a[i] != s[i]:
				return false
			}
		}
		return len(a) == len(s)
	})
}

// The server sends a reply to the subject that the request names, without checking whether the user may
// publish to it. So no user except the operator and the trigger, which owns the streams, may send a request whose
// reply is itself a valid request: an empty message, or JSON with the fields of a request.
func TestRepliesAreNotRequests(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t, "points")
	_, err := g.JS().CreateConsumer(t.Context(), StreamMessages, jetstream.ConsumerConfig{Durable: "points", FilterSubject: "msg.orders.paid", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	before := g.messageCounts()
	requests := map[string][]string{"points": {"$JS.sendonce.API.CONSUMER.INFO.MESSAGES.points", "$JS.sendonce.API.CONSUMER.MSG.NEXT.MESSAGES.points", "$JS.ACK.MESSAGES.points.1.1.1.1.0"}}
	for _, u := range Users(StreamAccepted) {
		if u.Name == UserOperator || u.Name == UserTrigger {
			continue
		}
		for _, allowed := range u.Publish {
			requests[u.Name] = append(requests[u.Name], strings.NewReplacer("*", "x", ">", "sweep").Replace(allowed))
		}
	}
	var replies []string
	for _, stream := range []string{StreamAccepted, StreamEvents, StreamMessages, StreamUsers, StreamDeadLetters} {
		replies = append(replies, "$JS.API.STREAM.DELETE."+stream, "$JS.API.STREAM.PURGE."+stream)
	}
	for user, subjects := range requests {
		a := g.attacker(user)
		for _, subject := range subjects {
			for _, body := range []string{"", "x", `{"seq":1}`, `{"seq":99}`, `{"from":1}`, `{"batch":1,"no_wait":true}`, pushToDelete} {
				purges := strings.Contains(subject, "STREAM.PURGE") && (body == "" || body == "x" || body == `{"seq":99}`)
				if purges || strings.Contains(subject, "STREAM.MSG.DELETE") && body == `{"seq":1}` { // the request itself removes messages, as permitted
					continue
				}
				for _, reply := range replies {
					require.NoError(t, a.nc.PublishRequest(subject, reply, []byte(body)))
				}
			}
		}
		// When the reply to this request arrives, the requests before it have been handled.
		require.NoError(t, a.nc.Flush())
		_, _ = a.nc.Request("$JS.API.STREAM.INFO.ACCEPTED", nil, bustest.Soon) // denied for points
	}
	// The requests may have stored messages; no stream has lost messages.
	after := g.messageCounts()
	for stream, n := range before {
		require.GreaterOrEqual(t, after[stream], n, stream)
	}
	require.Contains(t, after, StreamDeadLetters)
}

// pushToDelete creates a consumer that delivers messages to a subject of requests.
const pushToDelete = `{"stream_name":"MESSAGES","config":{"name":"x","deliver_subject":"$JS.API.STREAM.DELETE.DEADLETTERS","ack_policy":"none"},"action":""}`

func TestReceiverPermissions(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t, "points", "billing")
	for name, filter := range map[string]string{"points": "msg.orders.paid", "billing": "msg.orders.>"} {
		_, err := g.JS().CreateConsumer(t.Context(), StreamMessages, jetstream.ConsumerConfig{Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy})
		require.NoError(t, err)
	}
	before := g.messageCounts()
	a := g.attacker("points")
	for _, stream := range []string{StreamUsers, StreamMessages, StreamEvents, StreamAccepted} {
		for _, request := range []string{"STREAM.INFO", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.LIST"} {
			for _, prefix := range []string{"$JS.API.", "$JS.sendonce.API."} {
				reply, err := a.nc.Request(prefix+request+"."+stream, nil, time.Second)
				require.True(t, err != nil || strings.Contains(string(reply.Data), `"error"`), "%s%s.%s", prefix, request, stream)
			}
		}
	}
	js, err := jetstream.NewWithDomain(a.nc, Domain)
	require.NoError(t, err)
	_, err = js.Consumer(bustest.Within(t, time.Second), StreamMessages, "billing")
	require.Error(t, err, "the consumer of another receiver")
	_, err = js.CreateOrUpdateConsumer(bustest.Within(t, time.Second), StreamMessages, jetstream.ConsumerConfig{Durable: "points", FilterSubject: "msg.>"})
	require.Error(t, err, "a wider filter")
	everything, err := a.nc.SubscribeSync(">")
	require.NoError(t, err)
	for _, subject := range []string{"evt.x", "inbox.ann", "msg.orders.paid", "acc.1.x", "wake.relay"} {
		require.NoError(t, a.nc.Publish(subject, []byte("forged")))
	}

	publishAll(t, g.bus("relay"), Message{Subject: "msg.orders.refunded", Event: bustest.Event("not granted")}, Message{Subject: "msg.orders.paid", Event: bustest.Event("granted")})
	consumer, err := js.Consumer(bustest.Within(t, bustest.Soon), StreamMessages, "points")
	require.NoError(t, err)
	var got []string
	for _, m := range fetchAndAck(t, consumer, 2) {
		got = append(got, m.Headers().Get("ce-id"))
	}
	require.Equal(t, []string{"m", "granted"}, got)
	info, err := consumer.Info(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	require.Zero(t, info.NumAckPending)
	require.Zero(t, info.NumPending)

	for { // points has received only its own messages and replies
		m, err := everything.NextMsg(50 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		require.NoError(t, err)
		require.NotContains(t, m.Subject, "refunded")
		require.False(t, strings.HasPrefix(m.Subject, "wake.queue"), m.Subject)
	}
	before[StreamMessages] += 2
	require.Equal(t, before, g.messageCounts())
}

// Without limits, 2,500 subscriptions of 2,000 tokens on one connection used 2 GB of the server's memory.
func TestReceiverSubscriptionsAreLimited(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t, "points")
	deep := g.attacker("points")
	_, err := deep.nc.SubscribeSync(strings.Repeat("a.", maxTokens) + "a")
	require.NoError(t, err)
	require.NoError(t, deep.nc.Flush())
	require.ErrorContains(t, deep.nc.LastError(), "too many tokens")

	many := g.attacker("points")
	for n := range receiverSubscriptions + 1 {
		_, err = many.nc.SubscribeSync(fmt.Sprint("s", n))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return errors.Is(many.nc.LastError(), nats.ErrMaxSubscriptionsExceeded) }, bustest.Soon, time.Millisecond, many.nc.LastError())
}

func TestDeniedSubjectOfOurStreamIsUnavailable(t *testing.T) {
	t.Parallel()
	submit := newSecuredBroker(t).bus("submit")
	for range 2 { // the second time the denial is known
		errs := submit.Publish(bustest.Within(t, bustest.Soon), []Message{{Subject: "msg.orders.paid", Event: bustest.Event("y")}})
		require.ErrorIs(t, errs[0], ErrStreamUnavailable, "the permissions are wrong, not the message")
	}
}

// Functions may not create streams: each call fails at once, and succeeds after the trigger has created the streams.
func TestCallsFailAtOnceWithoutStreams(t *testing.T) {
	t.Parallel()
	g := newSecuredBroker(t)
	for _, name := range []string{StreamAccepted, StreamEvents, StreamMessages, StreamUsers} {
		require.NoError(t, g.JS().DeleteStream(t.Context(), name))
	}
	messages, stream, relay := g.bus("messages"), g.bus("stream"), g.bus("relay")
	accept := func() error {
		_, err := messages.Accept(bustest.Within(t, bustest.Soon), acceptance(t, "b", "x"))
		return err
	}
	follow := func() error {
		f, err := stream.Follow(bustest.Within(t, bustest.Soon), "ann", nil, nil, noLimit)
		if err == nil {
			f.Close()
		}
		return err
	}
	publish := func() error { return relay.Publish(bustest.Within(t, bustest.Soon), []Message{eventMessage("f")})[0] }
	durability := func() error { _, err := messages.Durability(bustest.Within(t, bustest.Soon), ""); return err }
	for name, do := range map[string]func() error{"accept": accept, "follow": follow, "publish": publish, "durability": durability} {
		began := time.Now()
		err := do()
		require.ErrorIs(t, err, ErrUnavailable, name)
		require.ErrorContains(t, err, "is missing: the trigger creates it", name)
		require.Less(t, time.Since(began), bustest.Soon, name)
	}
	works := func() bool { return errors.Join(accept(), follow(), publish(), durability()) == nil }
	require.NoError(t, g.bus(UserTrigger).Ensure(bustest.Within(t, bustest.Soon)))
	bustest.Eventually(t, works, "the trigger has created them")
}

// A server without users keeps its streams in the directory $G. If the directory is renamed to the name of the
// account, the account has the streams.
func TestStreamsSurviveAddingUsers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := natsserver.New(t, natsserver.Options{Dir: dir})
	b := newBusWithStreams(t, Config{URL: old.URL()})
	publishAll(t, b, eventMessage("before"))
	conn, err := b.connection(bustest.Within(t, bustest.Soon))
	require.NoError(t, err)
	_, err = conn.js.CreateConsumer(bustest.Within(t, bustest.Soon), StreamEvents, jetstream.ConsumerConfig{Durable: RecordDurable, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	require.NoError(t, old.Stop())

	store := filepath.Join(dir, "jetstream")
	require.NoError(t, os.Rename(filepath.Join(store, "$G"), filepath.Join(store, account)))
	g := &securedBroker{bustest.NewBrokerWith(t, securedOptions(dir)), t}
	require.EqualValues(t, 1, g.messageCounts()[StreamEvents])
	c, err := g.JS().Consumer(t.Context(), StreamEvents, RecordDurable)
	require.NoError(t, err)
	require.EqualValues(t, 1, c.CachedInfo().NumPending)
}

func TestReplyPrefixPerUser(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"_INBOX":          {URL: "nats://h"},
		"_INBOX.relay":    {URL: "nats://h", User: "relay"},
		"_INBOX.claim":    {URL: "nats://claim:x@h,nats://claim:x@i", User: "relay"},
		"_INBOX.a=2eb":    {URL: "nats://h", User: "a.b"},
		"_INBOX_mine.all": {URL: "nats://h", User: "relay", InboxPrefix: "_INBOX_mine.all"},
	} {
		require.Equal(t, want, c.replyPrefix())
	}
}

func TestCheckReceiversAndSubjects(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{"orders.>", "orders", "a-b.*.c_d"} {
		require.NoError(t, CheckSubject(subject))
	}
	for _, subject := range []string{
		"", ">", "*", "*.paid", `a"b{`, "a b", "a..b", ".a", "a.", "a.>.b", "a.b*", "$JS.API.>", "_INBOX.>", "evt.>", "wake.relay", "acc.>", "dlq.x", "sched.x", "inbox.ann", "notify.callers",
	} {
		require.Error(t, CheckSubject(subject), subject)
	}
	users := Users(StreamAccepted)
	require.NoError(t, CheckReceivers(users, []string{"points", "billing-2"}))
	for _, names := range [][]string{{"operator"}, {"Operator"}, {"points", "points"}, {"a-b", "a_b"}, {""}, {`a"b{`}, {"wechat"}} {
		require.Error(t, CheckReceivers(users, names), "%v", names)
	}
}
