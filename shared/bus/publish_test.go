package bus

import (
	"strconv"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func TestPublishIsolatesBadMessages(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	huge := eventMessage("huge")
	require.NoError(t, huge.Event.SetData("text/plain", []byte(strings.Repeat("x", 2<<20))))
	typeless := eventMessage("typeless")
	typeless.Event.SetType("")

	errs := b.Publish(bustest.Within(t, bustest.Soon), []Message{
		eventMessage("1"),
		{Subject: "orders.pointz", MsgID: "typo", Event: bustest.Event("typo")},
		{Subject: "evt.*", MsgID: "wild", Event: bustest.Event("wild")},
		{Subject: "evt." + strings.Repeat("x", 5000), MsgID: "long", Event: bustest.Event("long")}, // the server would end the connection
		huge,
		typeless,
		eventMessage("1"),
		{Subject: "msg.default.points", MsgID: "a.0.1", Event: bustest.Event("a")},
	})
	require.Len(t, errs, 8)
	for i, refusal := range []string{"", "no stream has the subject orders.pointz", "not a subject", "not a subject", "payload", "type", "", ""} {
		if refusal == "" {
			require.NoError(t, errs[i], i)
			continue
		}
		require.ErrorIs(t, errs[i], ErrRefused, i)
		require.NotErrorIs(t, errs[i], ErrUnavailable, i)
		require.ErrorContains(t, errs[i], refusal)
	}
	require.EqualValues(t, 1, broker.Info(StreamEvents).State.Msgs, "a repeat with the same id succeeds and is not stored")
	require.EqualValues(t, 1, broker.Info(StreamMessages).State.Msgs)
}

func TestPublishKeepsOrder(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	messages := make([]Message, 500)
	for i := range messages {
		messages[i] = eventMessage(strconv.Itoa(i))
	}
	publishAll(t, b, messages...)
	s := broker.Stream(StreamEvents)
	for i := range messages {
		m, err := s.GetMsg(t.Context(), uint64(i+1))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), m.Header.Get("Nats-Msg-Id"))
	}
}

func TestDeduplicationSurvivesRestart(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	publishAll(t, b, eventMessage("1"))
	broker.Stop()
	for _, err := range b.Publish(bustest.Within(t, bustest.Soon), []Message{eventMessage("1"), eventMessage("2")}) {
		require.ErrorIs(t, err, ErrUnavailable)
	}
	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool { return b.Publish(bustest.Within(t, bustest.Soon), []Message{eventMessage("2")})[0] == nil }, "published after the restart")
	publishAll(t, b, eventMessage("1"))
	require.EqualValues(t, 2, broker.Info(StreamEvents).State.Msgs)
}

func TestPublishToFullStreamOrSubject(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	_, err := broker.JS().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "SMALL", Subjects: []string{"small.>"}, MaxMsgs: 2, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	})
	require.NoError(t, err)
	errs := newBus(t, broker.URL()).Publish(bustest.Within(t, bustest.Soon), []Message{
		{Subject: "small.a", Event: bustest.Event("1")}, {Subject: "small.a", Event: bustest.Event("2")},
		{Subject: "small.b", Event: bustest.Event("3")}, {Subject: "small.c", Event: bustest.Event("4")},
	})
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], ErrSubjectUnavailable)
	require.NotErrorIs(t, errs[1], ErrStreamUnavailable, "other subjects are available")
	require.NoError(t, errs[2])
	require.ErrorIs(t, errs[3], ErrStreamUnavailable)
	require.NotErrorIs(t, errs[3], ErrSubjectUnavailable, "the whole stream is full")
	require.ErrorContains(t, errs[3], "maximum messages exceeded")
}

func TestPublishToStreamWithoutAcks(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	_, err := broker.JS().CreateStream(t.Context(), jetstream.StreamConfig{Name: "MUTE", Subjects: []string{"mute"}, NoAck: true})
	require.NoError(t, err)
	errs := b.Publish(bustest.Within(t, 4*time.Second), []Message{{Subject: "mute", Event: bustest.Event("1")}, eventMessage("2")})
	require.ErrorIs(t, errs[0], ErrStreamUnavailable)
	require.NoError(t, errs[1])
}

func TestPublishStopsWhenConnectionIsLost(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	conn, err := b.connection(t.Context())
	require.NoError(t, err)
	publishAll(t, b, eventMessage("1"))
	conn.end() // as after a reconnect: this Connection has ended, but its nats.Conn works
	for _, err := range b.Publish(bustest.Within(t, bustest.Soon), []Message{eventMessage("2"), eventMessage("3")}) {
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrStreamUnavailable)
	}
	require.EqualValues(t, 1, broker.Info(StreamEvents).State.Msgs)
}

func TestPublishStopsAfterUnsentMessage(t *testing.T) {
	t.Parallel()
	_, b := newBrokerWithStreams(t)
	conn, err := b.connection(t.Context())
	require.NoError(t, err)
	publisher, err := conn.newPublisher(3)
	require.NoError(t, err)
	conn.nats().Close()
	futures, errs := b.sendAll(conn, publisher, []Message{eventMessage("1"), {Subject: "evt.*", Event: bustest.Event("2")}, eventMessage("3")})
	require.Equal(t, make([]jetstream.PubAckFuture, 3), futures)
	for _, err := range errs {
		require.ErrorIs(t, err, ErrUnavailable)
		require.Equal(t, errs[0], err)
	}
}

func TestPublishRefusesSubjectWithoutStream(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	_, err := broker.Conn().Subscribe("orders.points", func(*nats.Msg) {})
	require.NoError(t, err)
	errs := b.Publish(bustest.Within(t, 2*time.Second), []Message{{Subject: "orders.points", Event: bustest.Event("1")}})
	require.ErrorIs(t, errs[0], ErrRefused, "a subscriber is not a stream")
}

// NATS lost its streams, and then somebody created another stream with our subjects.
func TestForeignStreamWithOurSubjectsGetsNoMessages(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	_, err := broker.JS().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "ARCHIVE", Subjects: []string{EventPrefix + ">", MessagePrefix + ">", UserPrefix + ">", wakePrefix + ">", "orders.>"},
	})
	require.NoError(t, err)
	b := newBus(t, broker.URL())
	require.Error(t, b.Ensure(bustest.Within(t, bustest.Soon)))

	errs := b.Publish(bustest.Within(t, bustest.Soon), []Message{
		eventMessage("1"),
		{Subject: "msg.orders.paid", Event: bustest.Event("2")},
		{Subject: UserSubject("ann"), Event: bustest.Event("3")},
		{Subject: "orders.paid", Event: bustest.Event("4")}, // a subject that is not ours
	})
	for _, err := range errs[:3] {
		require.ErrorIs(t, err, ErrStreamUnavailable)
		require.ErrorContains(t, err, "stream does not match")
	}
	require.NoError(t, errs[3])
	conn, err := b.AwaitConnection(t.Context())
	require.NoError(t, err)
	require.Error(t, conn.CheckWakeUps(t.Context()))
	require.EqualValues(t, 1, broker.Info("ARCHIVE").State.Msgs)
}

func TestPublishWithoutBroker(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	broker.Stop()
	b := newBus(t, broker.URL())
	err := b.Publish(bustest.Within(t, bustest.Soon), []Message{eventMessage("1")})[0]
	require.ErrorIs(t, err, ErrUnavailable)
	require.NotErrorIs(t, err, ErrStreamUnavailable)

	broker.Start(broker.Dir)
	newBusWithStreams(t, Config{URL: broker.URL()})
	bustest.Eventually(t, func() bool { return b.Publish(bustest.Within(t, bustest.Soon), []Message{eventMessage("1")})[0] == nil }, "published after the server has started")
}

func TestNilBusIsUnavailable(t *testing.T) {
	t.Parallel()
	b, err := Open(Config{}, nil)
	require.NoError(t, err)
	require.Nil(t, b)
	ctx := t.Context()
	b.Wake(WakeSweep, 1)
	b.WakeAt(WakeSweep, time.Now().Add(time.Hour))
	b.OnQueue(nil, nil)
	b.NotifyCallerChanged(ctx, "ann")
	b.OnCallerChanged(nil, nil)
	require.NoError(t, b.Ensure(ctx))
	require.Zero(t, b.FailedSends())
	require.Zero(t, b.Denied())
	_, acceptErr := b.Accept(ctx, acceptance(t, "1", "x"))
	_, lookUpErr := b.LookUp(ctx, "1")
	_, acceptedAtErr := b.AcceptedAt(ctx, []uint64{1})
	_, oldestErr := b.OldestAccepted(ctx, 1, time.Hour, 1)
	_, stateErr := b.AcceptState(ctx)
	_, durabilityErr := b.Durability(ctx, "")
	_, followErr := b.Follow(ctx, "ann", nil, nil, noLimit)
	for name, err := range map[string]error{
		"Publish": b.Publish(ctx, []Message{eventMessage("1")})[0], "Accept": acceptErr, "LookUp": lookUpErr, "AcceptedAt": acceptedAtErr,
		"OldestAccepted": oldestErr, "Forget": b.Forget(ctx, entries(1)), "AcceptState": stateErr, "Durability": durabilityErr, "Follow": followErr,
	} {
		require.ErrorIs(t, err, ErrUnavailable, name)
	}
	b.Close()
}

func TestOpenRejectsBadSettings(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"SENDONCE_NATS_REPLICAS":         {URL: "nats://h", Replicas: 2},
		"SENDONCE_STREAM_USERS_MB":       {URL: "nats://h", Replicas: 1, UsersMB: -1},
		"SENDONCE_STREAM_USERS_MAX_AGE":  {URL: "nats://h", Replicas: 1, UsersMaxAge: time.Second},
		"NATS_CREDENTIALS":               {URL: "nats://h", Replicas: 1, CredentialsFile: "/does/not/exist"},
		"NATS_USER and NATS_CREDENTIALS": {URL: "nats://h", Replicas: 1, CredentialsFile: "/x", User: "u"},
		"NATS_CA cannot be read":         {URL: "nats://h", Replicas: 1, CAFile: "/none"},
		`NATS_INBOX_PREFIX is "_a.*"`:    {URL: "nats://h", Replicas: 1, InboxPrefix: "_a.*"},
		`NATS_INBOX_PREFIX is "msg.a"`:   {URL: "nats://h", Replicas: 1, InboxPrefix: "msg.a"},
		`TWO_PHASE_STREAM is "a.b"`:      {URL: "nats://h", Replicas: 1, AcceptStream: "a.b"},
		`TWO_PHASE_STREAM is "a b"`:      {URL: "nats://h", Replicas: 1, AcceptStream: "a b"},
		`TWO_PHASE_STREAM is "a*"`:       {URL: "nats://h", Replicas: 1, AcceptStream: "a*"},
		`TWO_PHASE_STREAM is "a/b"`:      {URL: "nats://h", Replicas: 1, AcceptStream: "a/b"},
	} {
		_, err := Open(cfg, nil)
		require.ErrorContains(t, err, want)
	}
}

func TestEventAttributesBecomeHeaders(t *testing.T) {
	t.Parallel()
	e := bustest.Event("1")
	e.SetSubject("a task")
	e.SetTime(time.Date(2026, 11, 20, 1, 2, 3, 4, time.UTC))
	e.SetDataSchema("https://example.com/schema")
	e.SetExtension("sequence", 7)
	require.NoError(t, e.SetData(cloudevents.ApplicationJSON, map[string]int{"n": 1}))
	h, err := encodeHeaders(e)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/test", "ce-type": "sendonce.task.succeeded.v1", "ce-subject": "a task",
		"ce-time": "2026-11-20T01:02:03.000000004Z", "ce-dataschema": "https://example.com/schema", "ce-sequence": "7",
		"content-type": "application/json",
	}, Attributes(h))
}

func TestAttributesAreWithoutControlCharactersAndOtherHeaders(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]string{"ce-id": "ab"}, Attributes(nats.Header{
		"CE-Id": {"a\x01b"}, "ce-": {"x"}, "ce-bad name": {"x"}, "Nats-Msg-Id": {"x"}, "ce-none": {},
	}))
}
