package bus

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus/bustest"
)

func TestBucketOfRoundsByTimeAhead(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ in, want time.Duration }{
		{300 * time.Millisecond, time.Second},
		{time.Second, 2 * time.Second},
		{59 * time.Second, 60 * time.Second},
		{61 * time.Second, 70 * time.Second},
		{70 * time.Second, 80 * time.Second},
		{10*time.Minute + 5*time.Second, 10*time.Minute + 10*time.Second},
		{90*time.Minute + 59*time.Second, 90 * time.Minute},
		{25*time.Hour + 59*time.Minute, 25 * time.Hour},
	} {
		require.Equal(t, now.Add(c.want), bucketOf(now.Add(c.in), now), c.in)
	}
}

func TestSchedulesEvictNothing(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	b.Wake(WakeSweep, 1) // without a receiver
	bustest.Eventually(t, func() bool { return broker.Info(StreamWake).State.Msgs == 1 }, "a wake-up is stored")
	published, stored := 0, 0
	awaitStored := func() {
		t.Helper()
		bustest.Eventually(t, func() bool { return broker.Info(StreamWake).State.Msgs == uint64(published)+1 }, "all schedules are stored")
		stored = published
	}
	due := time.Now().Add(2 * time.Minute)
	for i := range 268_000 { // 31 days
		b.WakeAt(WakeRelay, due.Add(time.Duration(i)*10*time.Second))
		b.mu.Lock()
		published = len(b.scheduled)
		b.mu.Unlock()
		if published >= stored+100 { // more at once could exceed wakeTimeout on a slow machine
			awaitStored()
		}
	}
	require.LessOrEqual(t, published, scheduleLimit)
	awaitStored()
	state := broker.Info(StreamWake).State
	require.EqualValues(t, 1, state.Subjects[WakeSweep], "the wake-up is still stored")
	const subjects = 5 // sweep, relay, deliver, save and wechat
	require.Less(t, subjects*scheduleLimit*int(state.Bytes/state.Msgs), wakeMB*mib/2, "there is room for the schedules of all subjects")
}

// A server whose clock is ahead fires and removes a schedule early.
func TestWakeAgainAtAfterEarlyWakeUp(t *testing.T) {
	t.Parallel()
	broker, b := newBrokerWithStreams(t)
	due := time.Now().Add(2 * time.Second)
	b.WakeAt(WakeSweep, due)
	scheduled := func() bool { return len(broker.Info(StreamWake).State.Subjects) == 1 }
	bustest.Eventually(t, scheduled, "scheduled")
	wake := broker.Stream(StreamWake)
	require.NoError(t, wake.Purge(t.Context()))
	b.WakeAgainAt(WakeSweep, due)
	bustest.Eventually(t, func() bool { return broker.Info(StreamWake).State.Subjects[WakeSweep] == 1 }, "woken")
	require.False(t, time.Now().Before(due))
}

func TestScheduleIsPublishedAgain(t *testing.T) {
	t.Parallel()
	b := newBus(t, "nats://127.0.0.1:1")
	now := time.Now()
	for ahead, valid := range map[time.Duration]time.Duration{
		time.Second: time.Second, time.Minute: 30 * time.Second, 10 * 24 * time.Hour: scheduleCacheTime,
	} {
		bucket := now.Add(ahead)
		require.True(t, b.markScheduled(ahead.String(), bucket, now))
		require.False(t, b.markScheduled(ahead.String(), bucket, now.Add(valid-time.Millisecond)), ahead)
		require.True(t, b.markScheduled(ahead.String(), bucket, now.Add(valid)), ahead)
	}
}

func TestWakeAtFiresOncePerBucket(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	buses := []*Bus{newBusWithStreams(t, Config{URL: broker.URL()}), newBus(t, broker.URL())}
	due := time.Now().Truncate(time.Second).Add(1500 * time.Millisecond)
	for range 50 {
		for _, b := range buses {
			b.WakeAt(WakeSweep, due)
		}
	}
	fired := func() bool { return broker.Info(StreamWake).State.Subjects[WakeSweep] == 1 }
	bustest.Eventually(t, fired, "fired")
	require.False(t, time.Now().Before(due), "not early")
	info := broker.Info(StreamWake)
	require.Equal(t, map[string]uint64{WakeSweep: 1}, info.State.Subjects, "the schedule is removed")
	require.LessOrEqual(t, info.State.LastSeq, uint64(3), "one publish per process, and one wake-up")
	for _, b := range buses {
		require.Zero(t, b.FailedSends())
	}
}

func TestWakeAtInThePastWakesAtOnce(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b, a := newBus(t, broker.URL()), subscribeTo(t, broker.Conn(), WakeRelay)
	b.WakeAt(WakeRelay, time.Now().Add(-time.Minute))
	bustest.Eventually(t, func() bool { _, total := a.sum(); return total == 1 }, "woken")
}

func TestFailedScheduleIsRetried(t *testing.T) {
	t.Parallel()
	broker := bustest.NewBroker(t)
	b := newBus(t, broker.URL())
	due := time.Now().Add(time.Hour)
	b.WakeAt(WakeSweep, due) // there is no stream yet
	bustest.Eventually(t, func() bool { return b.FailedSends() == 1 }, "counted")
	require.NoError(t, b.Ensure(t.Context()))
	bustest.Eventually(t, func() bool {
		b.WakeAt(WakeSweep, due)
		return broker.Info(StreamWake).State.Msgs == 1
	}, "the schedule is stored")
}

func TestScheduleCacheIsBounded(t *testing.T) {
	t.Parallel()
	b := newBus(t, "nats://127.0.0.1:1")
	now := time.Now()
	for i := range scheduleCacheSize {
		at := now.Add(-time.Duration(i%2) * time.Hour)
		require.True(t, b.markScheduled(strconv.Itoa(i), at.Add(time.Minute), at))
	}
	require.True(t, b.markScheduled("one more", now, now))
	require.Len(t, b.scheduled, scheduleCacheSize/2+1, "expired schedules are removed first")
}

func TestServerReleaseIsReachedBy(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"2.12.0": true, "2.12.0-RC.1": true, "2.15.2": true, "3.0.0": true, "2.11.9": false, "2.9.10": false, "": false, "x": false} {
		require.Equal(t, want, serverRelease{2, 12}.isReachedBy(version), version)
	}
}
