package bus

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

// arrivals collects the numbers that a core subscription receives.
type arrivals struct {
	mu sync.Mutex
	n  []int
}

func subscribeTo(t *testing.T, nc *nats.Conn, subject string) *arrivals {
	t.Helper()
	a := &arrivals{}
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		n, err := strconv.Atoi(string(m.Data))
		if err != nil {
			panic(err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.n = append(a.n, n)
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return a
}

func (a *arrivals) sum() (messages, total int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.n {
		total += n
	}
	return len(a.n), total
}

func TestWakeUpsOfOneIntervalAreSentAsOne(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	a := subscribeTo(t, broker.Conn(), WakeSweep)
	began := time.Now()
	for range 1000 {
		b.Wake(WakeSweep, 1)
	}
	b.Wake(WakeSweep, 0)
	atMost := 2 + int(time.Since(began)/wakeInterval)
	bustest.Eventually(t, func() bool { _, total := a.sum(); return total == 1001 }, "all arrive")
	messages, _ := a.sum()
	require.LessOrEqual(t, messages, atMost)
	require.Zero(t, b.FailedSends())
	bustest.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.pending) == 0 }, "no state is left for a subject without wake-ups")
}

func TestCloseSendsPendingWakeUps(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	a := subscribeTo(t, broker.Conn(), WakeSweep)
	b.Wake(WakeSweep, 1)
	b.Wake(WakeSweep, 2)
	b.Close()
	bustest.Eventually(t, func() bool { _, total := a.sum(); return total >= 3 }, "all arrive; Close may send one of them again")
	b.Wake(WakeSweep, 4)
	require.EqualValues(t, 1, b.FailedSends())
}

func TestUnsentWakeUpsAreSentAfterReconnect(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	broker.Stop()
	bustest.Eventually(t, func() bool { return !b.Connected() }, "noticed")
	b.Wake(WakeSweep, 1)
	b.Wake(WakeRelay, 7)
	b.WakeAt(WakeDeliver, time.Now().Add(time.Hour))
	bustest.Eventually(t, func() bool { return b.FailedSends() == 3 }, "counted")
	broker.Start(broker.Dir)
	bustest.Eventually(t, func() bool {
		subjects := broker.Info(StreamWake).State.Subjects
		return subjects[WakeSweep] == 1 && subjects[WakeRelay] == 1 && len(subjects) == 3
	}, "both wake-ups and the schedule")
	bustest.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.unsent) == 0 }, "no unsent wake-up is left")
}

func TestWakeUpThatTheStreamDoesNotStoreIsRepeated(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	a := subscribeTo(t, broker.Conn(), WakeRelay)
	require.NoError(t, broker.JS().DeleteStream(t.Context(), StreamWake))
	b.Wake(WakeRelay, 1)
	bustest.Eventually(t, func() bool { messages, _ := a.sum(); return messages > 0 }, "it is sent")
	require.NoError(t, b.Ensure(bustest.Within(t, bustest.Soon)))
	bustest.Eventually(t, func() bool { return broker.Info(StreamWake).State.Subjects[WakeRelay] == 1 }, "it is sent again")
}

func TestStreamThatDoesNotRespondDelaysNoPollers(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	relay, queue := subscribeTo(t, broker.Conn(), WakeRelay), subscribeTo(t, broker.Conn(), QueueSubject("q")) // without replies
	b.Wake(WakeRelay, 1)
	bustest.Eventually(t, func() bool { messages, _ := relay.sum(); return messages == 1 }, "the wake-up of relay is sent")
	b.Wake(QueueSubject("q"), 1)
	bustest.Eventually(t, func() bool { messages, _ := queue.sum(); return messages == 1 }, "the wake-up of a queue is sent at once")
	require.Zero(t, b.FailedSends(), "the wake-up of relay still waits for an acknowledgement")
	bustest.Eventually(t, func() bool { return b.FailedSends() > 0 }, "the wait is bounded")
}

func TestUnsentWakeUpsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBus(t, "nats://127.0.0.1:1")
	for i := range maxUnsent + 10 {
		b.keepUnsent(signal{subject: WakeSweep, at: time.Unix(int64(i), 0)})
		b.keepUnsent(signal{subject: QueueSubject(strconv.Itoa(i))})
	}
	require.Len(t, b.unsent, maxUnsent)
	caller, relay := signal{subject: subjectCallers, caller: "bob"}, signal{subject: WakeRelay}
	b.keepUnsent(caller)
	b.keepUnsent(relay)
	require.EqualValues(t, 2*(maxUnsent+10)+2, b.FailedSends())
	unsent := b.takeUnsent()
	require.Len(t, unsent, maxUnsent+2)
	require.True(t, unsent[caller] && unsent[relay], "the limit applies only to queues and schedules")
}

func TestOnQueueReceivesWakeUpsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	var mu sync.Mutex
	received := map[string]int{}
	receiver, sender := newBus(t, broker.URL()), newBus(t, broker.URL())
	receiver.OnQueue(func(queue string, n int) {
		mu.Lock()
		defer mu.Unlock()
		received[queue] += n
	}, func() {})
	bustest.Eventually(t, func() bool {
		sender.Wake(QueueSubject("first.queue-1_A"), 3)
		mu.Lock()
		defer mu.Unlock()
		return received["first.queue-1_A"] >= 3 && len(received) == 1
	}, "received")
}

func TestManyInvalidWakeUpsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	var log bytes.Buffer
	receiver, sender := openBus(t, Config{URL: broker.URL()}, &log), newBus(t, broker.URL())
	received := make(chan string, 100)
	receiver.OnQueue(func(queue string, _ int) { received <- queue }, func() {})
	bustest.Eventually(t, func() bool {
		sender.Wake(QueueSubject("first"), 1)
		return len(received) > 0
	}, "subscribed")
	for range 100 {
		require.NoError(t, sender.nc.Publish("wake.queue.zz", nil))
	}
	sender.Wake(QueueSubject("last"), 1)
	bustest.Eventually(t, func() bool { return <-received == "last" }, "the others were received before")
	receiver.Close()
	require.Equal(t, 1, strings.Count(log.String(), "ignored an invalid wake-up"))
}

func TestEscapeToken(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"default", "a.b", "a=2eb", "a b", "*", ">", "验证码", "A_b-9"} {
		token := escapeToken(name)
		require.NotContains(t, token, ".")
		require.True(t, publishable("wake.queue."+token), token)
		require.False(t, seen[token])
		seen[token] = true
		back, ok := unescapeToken(token)
		require.True(t, ok)
		require.Equal(t, name, back)
	}
	for _, invalid := range []string{"=", "=2", "=zz"} {
		_, ok := unescapeToken(invalid)
		require.False(t, ok, invalid)
	}
}

func TestSubscribedIsCalledAfterServerReplies(t *testing.T) {
	t.Parallel()
	proxy := newInjector(t, bustest.NewBroker(t).URL())
	b := newBus(t, "nats://"+proxy.addr)
	_, err := b.connection(t.Context())
	require.NoError(t, err)
	proxy.mu.Lock() // the client receives nothing
	subscribed := make(chan bool, 10)
	b.OnQueue(func(string, int) {}, func() { subscribed <- true })
	time.Sleep(writeTimeout + time.Second) // longer than the timeout of one flush
	require.Empty(t, subscribed)
	proxy.mu.Unlock()
	<-subscribed
}

func TestAsynchronousErrorsOfNATSAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	b := openBus(t, Config{URL: "nats://127.0.0.1:1"}, &log)
	for range 3 {
		b.onAsyncError(nats.ErrSlowConsumer)
	}
	require.Equal(t, 1, strings.Count(log.String(), nats.ErrSlowConsumer.Error()), log.String())
}
