package bus

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

func TestEnsureCreatesStreams(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	var processes sync.WaitGroup
	for range 4 {
		b := newBus(t, broker.URL())
		processes.Go(func() {
			for range 2 {
				if err := b.Ensure(bustest.Within(t, bustest.Soon)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	processes.Wait()
	var names []string
	for name := range broker.JS().StreamNames(t.Context()).Name() {
		names = append(names, name)
	}
	require.ElementsMatch(t, []string{StreamAccepted, StreamDeadLetters, StreamEvents, StreamMessages, StreamUsers, StreamWake}, names)
}

func TestEnsureUpdatesStreams(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	wanted := broker.Info(StreamEvents).Config
	broker.ChangeStream(StreamEvents, func(c *jetstream.StreamConfig) {
		c.MaxAge, c.MaxBytes, c.Discard, c.Duplicates = time.Hour, 1<<20, jetstream.DiscardOld, time.Minute
		c.MaxMsgSize, c.NoAck = 1000, true
		c.Subjects = []string{"evt.>", "more.>"}
	})

	require.NoError(t, b.Ensure(t.Context()))
	wanted.Subjects = []string{"evt.>", "more.>"} // subjects added by an operator stay
	require.Equal(t, wanted, broker.Info(StreamEvents).Config)
}

func TestEnsureSetsLimitsButKeepsContent(t *testing.T) {
	t.Parallel()
	broker, _ := newBrokerWithStreams(t)
	for range 6 {
		_, err := broker.JS().Publish(t.Context(), "msg.x", make([]byte, 100_000))
		require.NoError(t, err)
	}
	b := openBus(t, Config{URL: broker.URL(), MessagesMB: 1, UsersMB: 300, UsersMaxAge: 48 * time.Hour}, io.Discard)
	require.ErrorContains(t, b.Ensure(t.Context()), "MESSAGES: max_bytes is 268435456, wanted 1048576 (the stream holds 600")
	require.EqualValues(t, 256*mib, broker.Info(StreamMessages).Config.MaxBytes, "1 MiB is less than twice the content")
	require.EqualValues(t, 300*mib, broker.Info(StreamUsers).Config.MaxBytes)
	require.Equal(t, 48*time.Hour, broker.Info(StreamUsers).Config.MaxAge)
	require.NoError(t, broker.Stream(StreamMessages).Purge(t.Context(), jetstream.WithPurgeKeep(3)))
	require.NoError(t, b.Ensure(t.Context()))
	require.EqualValues(t, mib, broker.Info(StreamMessages).Config.MaxBytes)
}

func TestEnsureReportsRefusedChanges(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	_, err := broker.JS().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: StreamEvents, Subjects: []string{"evt.task.>"}, Storage: jetstream.MemoryStorage, MaxBytes: mib,
	})
	require.NoError(t, err)

	err = b.Ensure(t.Context())
	var mismatch *MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Len(t, mismatch.Differences, 1)
	d := mismatch.Differences[0]
	require.Contains(t, d.Refused, "can not change storage type")
	d.Refused = ""
	require.Equal(t, Difference{Stream: "EVENTS", Field: "storage", Actual: "Memory", Wanted: "File",
		Remedy: "when its messages are not needed any more, 'nats stream rm EVENTS': the trigger creates it again"}, d)
	actual := broker.Info(StreamEvents).Config
	require.Equal(t, []string{"evt.>"}, actual.Subjects)
	require.EqualValues(t, 128*mib, actual.MaxBytes)
	require.Equal(t, jetstream.DiscardNew, actual.Discard)
	broker.Info(StreamWake) // the other streams exist
	broker.Info(StreamAccepted)
}

// A server older than 2.12 has created WAKE without message schedules. Now the server is newer.
func TestEnsureAllowsSchedulesAfterUpgrade(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	older := streamConfigs(&Config{Replicas: 1}, false)[0]
	require.Equal(t, StreamWake, older.Name)
	_, err := broker.JS().CreateStream(t.Context(), older)
	require.NoError(t, err)
	require.NoError(t, b.Ensure(t.Context()))
	b.WakeAt(WakeSweep, time.Now().Add(time.Second))
	bustest.Eventually(t, func() bool { return broker.Info(StreamWake).State.Subjects[WakeSweep] == 1 }, "woken in time")
}

func TestStreamsFitOneGigabyte(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBrokerWith(t, natsserver.Options{Dir: t.TempDir(), MaxStore: 1_000_000_000})
	newBusWithStreams(t, Config{URL: broker.URL()})
}

func TestEnsureContinuesAfterStreamWithoutRoom(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBrokerWith(t, natsserver.Options{Dir: t.TempDir(), MaxStore: 200 * mib})
	b := newBus(t, broker.URL())
	err := b.Ensure(t.Context())
	require.ErrorContains(t, err, "the stream reserves 256 MiB: raise max_file_store of the NATS servers, or lower SENDONCE_STREAM_ACCEPTED_MB")
	require.ErrorContains(t, err, "the stream reserves 256 MiB: raise max_file_store of the NATS servers, or lower SENDONCE_STREAM_MESSAGES_MB")
	var e *StreamError
	require.ErrorAs(t, err, &e)
	require.Equal(t, ReasonNoRoom, e.Reason)
	broker.Info(StreamWake)
	broker.Info(StreamEvents)
	broker.Info(StreamDeadLetters)
}

func TestEnsureReportsTakenSubjects(t *testing.T) {
	t.Parallel()
	broker, _ := newBrokerWithStreams(t)
	b := openBus(t, Config{URL: broker.URL(), AcceptStream: "RENAMED"}, io.Discard)
	err := b.Ensure(t.Context())
	var e *StreamError
	require.ErrorAs(t, err, &e)
	require.Equal(t, ReasonSubjectsTaken, e.Reason)
	require.Equal(t, "its subjects belong to the stream ACCEPTED, which may hold accepted messages that are not saved: "+
		"set TWO_PHASE_STREAM=ACCEPTED and TWO_PHASE_ENABLED=false, run 'sendonce drain' until it says 0, then 'nats stream rm ACCEPTED', then set TWO_PHASE_STREAM=RENAMED", e.Remedy)

	require.NoError(t, broker.JS().DeleteStream(t.Context(), StreamAccepted))
	require.NoError(t, b.Ensure(t.Context()))
	broker.Info("RENAMED")
}

// Somebody else has created two streams again, with sources, a mirror, republishing and a subject transform.
func TestEnsureRemovesSourcesAndRepublish(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	log := &sandbox.LogBuffer{}
	js, b := broker.JS(), openBus(t, Config{URL: broker.URL()}, log)
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	wanted := broker.Info(StreamAccepted).Config
	require.NoError(t, js.DeleteStream(t.Context(), StreamAccepted))
	changed := wanted
	changed.Sources = []*jetstream.StreamSource{{Name: StreamUsers}, {Name: StreamMessages}}
	changed.RePublish = &jetstream.RePublish{Source: "acc.9.>", Destination: "evt.>"}
	changed.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "acc.8.>", Destination: "acc.7.>"}
	_, err := js.CreateStream(t.Context(), changed)
	require.NoError(t, err)
	accept(t, b, "before", "x")
	require.NoError(t, js.DeleteStream(t.Context(), StreamMessages))
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: StreamMessages, Mirror: &jetstream.StreamSource{Name: StreamUsers}})
	require.NoError(t, err)

	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	require.Equal(t, wanted, broker.Info(StreamAccepted).Config)
	mirrored := broker.Info(StreamMessages).Config
	require.Nil(t, mirrored.Mirror)
	require.Equal(t, []string{"msg.>"}, mirrored.Subjects)
	publishAll(t, b, Message{Subject: "msg.orders.paid", Event: bustest.Event("m")})
	require.NotNil(t, lookUp(t, b, "before"), "accepted messages stay")
	for _, field := range []string{"sources", "republish", "subject_transform"} {
		require.Regexp(t, `level=WARN msg="changed a stream to match the settings" stream=ACCEPTED field=`+field+` from=.*(USERS|acc).* to=none`, log.String())
	}
}

// After a power loss NATS may have kept the state of a consumer, and lost the messages that the consumer received last.
func TestConsumerAheadOfItsStreamIsCreatedAgain(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	publishAll(t, b, eventMessage("1"), eventMessage("2"))
	ctx := bustest.Within(t, bustest.Soon)
	ahead := jetstream.ConsumerConfig{Durable: RecordDurable, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 100}
	_, err := broker.JS().CreateConsumer(ctx, StreamEvents, ahead)
	require.NoError(t, err)
	removed, err := b.TrimEvents(ctx)
	require.NoError(t, err)
	require.Zero(t, removed, "no event counts as recorded")

	conn, err := b.AwaitConnection(ctx)
	require.NoError(t, err)
	wanted := jetstream.ConsumerConfig{Durable: RecordDurable, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, AckWait: 30 * time.Second, MaxAckPending: 1000}
	var created time.Time
	for range 2 { // the second time the consumer stays as it is
		c, err := conn.EnsureConsumer(ctx, StreamEvents, wanted)
		require.NoError(t, err)
		require.EqualValues(t, 2, c.CachedInfo().NumPending)
		require.True(t, created.IsZero() || created.Equal(c.CachedInfo().Created))
		created = c.CachedInfo().Created
	}
}

func TestConsumerAheadOfAcceptedMessagesHasSavedNothing(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	acceptAll(t, b, 1, 5)
	_, err := broker.JS().CreateConsumer(t.Context(), StreamAccepted, jetstream.ConsumerConfig{
		Durable: ShardDurable("save", 0, 1), AckPolicy: jetstream.AckAllPolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 100,
	})
	require.NoError(t, err)
	state, err := b.AcceptState(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, []uint64{0, 5}, []uint64{state.SavedTo, state.Unsaved})
}
